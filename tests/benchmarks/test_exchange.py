"""The simulated exchange keeps to what can be worked out by hand."""

import pytest

from on_paper import exchange


@pytest.mark.parametrize(("num_nodes", "slots", "seconds"), [(1, 1, 150.0), (1, 4, 45.0), (3, 2, 30.0), (5, 2, 15.0)])
def test_equal_tasks_without_faults_take_whole_waves(num_nodes: int, slots: int, seconds: float) -> None:
    outcome = exchange.simulate([[10.0] * 10, [5.0] * 10], exchange.Cluster(num_nodes, slots))
    assert outcome == exchange.Outcome(seconds, tries=20, recorded=20, failed=0, lost=0, superseded=0)


def test_no_partition_is_reduced_before_the_last_one_is_mapped() -> None:
    assert exchange.simulate([[10.0, 1.0], [2.0, 2.0]], exchange.Cluster(1, 2)).seconds == 12.0


def test_the_bound_is_reached_by_whole_waves_and_never_beaten() -> None:
    even = [[10.0] * 8, [5.0] * 8]
    assert exchange.lower_bound(even, 4) == exchange.simulate(even, exchange.Cluster(2, 2)).seconds == 30.0
    uneven = [[float(number % 7 + 1) for number in range(50)], [30.0, 1.0, 1.0]]
    bound = exchange.lower_bound(uneven, 6)
    assert bound == pytest.approx(sum(uneven[0]) / 6 + 30.0)
    assert bound <= exchange.simulate(uneven, exchange.Cluster(3, 2)).seconds < 1.2 * bound


def test_a_lost_node_runs_only_its_unrecorded_task_again() -> None:
    lost = exchange.Faults(losses=(15.0,))
    outcome = exchange.simulate([[10.0] * 4], exchange.Cluster(2, 1), lost)
    assert outcome == exchange.Outcome(30.0, tries=5, recorded=4, failed=0, lost=1, superseded=0)


def test_without_a_ledger_a_lost_node_costs_the_whole_job() -> None:
    lost = exchange.Faults(losses=(15.0,))
    outcome = exchange.simulate([[10.0] * 4], exchange.Cluster(2, 1), lost, exchange.Policy(keeps_ledger=False))
    assert outcome == exchange.Outcome(55.0, tries=8, recorded=4, failed=0, lost=4, superseded=0)


def test_records_of_an_earlier_phase_survive_a_lost_node() -> None:
    lost = exchange.Faults(losses=(12.0,))
    phases = [[10.0, 10.0], [5.0, 5.0]]
    assert exchange.simulate(phases, exchange.Cluster(2, 1), lost).seconds == 20.0
    assert exchange.simulate(phases, exchange.Cluster(2, 1), lost, exchange.Policy(keeps_ledger=False)).seconds == 42.0


def test_a_job_without_nodes_ends_with_an_error() -> None:
    with pytest.raises(RuntimeError, match="no node is left after 7 s"):
        exchange.simulate([[10.0]], exchange.Cluster(2, 1), exchange.Faults(losses=(5.0, 7.0)))


def test_a_task_that_fails_every_time_ends_the_job() -> None:
    with pytest.raises(RuntimeError, match=f"of phase 0 failed {exchange.MOST_FAILURES} times"):
        exchange.simulate([[10.0]], exchange.Cluster(1, 1), exchange.Faults(failure_share=1.0))


def test_failed_tries_are_repeated_and_cost_half_a_task_each() -> None:
    outcome = exchange.simulate([[10.0] * 2000], exchange.Cluster(1, 1), exchange.Faults(failure_share=0.05))
    assert outcome.recorded == 2000
    assert outcome.tries == 2000 + outcome.failed
    assert outcome.failed == pytest.approx(2000 * 0.05 / 0.95, rel=0.2)
    assert outcome.seconds == pytest.approx(20_000 + outcome.failed * 5.0, rel=0.005)


def test_a_second_try_of_a_late_task_replaces_a_straggler() -> None:
    slow, free = exchange.Faults(slow_share=0.02, slow_factor=10.0), exchange.Cluster(100, 2)
    once = exchange.simulate([[10.0] * 100], free, slow)
    twice = exchange.simulate([[10.0] * 100], free, slow, exchange.Policy(speculates=True))
    assert once.seconds == 100.0
    assert twice.seconds == 25.0  # late after 15 s, then 10 s
    assert twice.superseded == twice.tries - 100 > 0


def test_a_waiting_task_comes_before_a_second_try() -> None:
    slow = exchange.Faults(slow_share=0.1, slow_factor=10.0)
    once, twice = (
        exchange.simulate([[10.0] * 50], exchange.Cluster(1, 1), slow, exchange.Policy(speculates=speculates))
        for speculates in (False, True)
    )
    assert once == twice


@pytest.mark.parametrize("keeps_ledger", [True, False])
def test_every_try_is_recorded_failed_lost_or_superseded(keeps_ledger: bool) -> None:
    faults = exchange.Faults(slow_share=0.05, slow_factor=5.0, failure_share=0.02, losses=(30.0, 60.0))
    phases, policy = [[10.0] * 200, [4.0] * 200], exchange.Policy(speculates=True, keeps_ledger=keeps_ledger)
    outcomes = [exchange.simulate(phases, exchange.Cluster(8, 4), faults, policy, seed=seed) for seed in (1, 1, 2)]
    for one in outcomes:
        assert one.tries == one.recorded + one.failed + one.lost + one.superseded
        assert min(one.failed, one.lost, one.superseded) > 0
    assert outcomes[0] == outcomes[1] != outcomes[2]
