"""docs/scale.md holds what its arithmetic gives now; arithmetic and simulation keep to cases worked out by hand."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from on_paper import costs, exchange, figures, page
from on_paper.exchange import Job, Outcome, Scenario

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
MOST_LINES = 250
OPENED = "make bench NAME=scale ARGS=--write"


def test_the_page_holds_what_the_figures_and_the_simulation_give() -> None:
    on_page = page.blocks_of(PAGE)
    assert sorted(on_page) == sorted(page.BLOCKS)
    assert not [line for line in page.without_blocks(PAGE).splitlines() if line.startswith("|")]
    assert len(PAGE.splitlines()) <= MOST_LINES
    rows = on_page.pop("simulated").splitlines()
    assert {name: page.computed(name) for name in on_page} == on_page, f"run `{OPENED}`"
    assert len(rows) == len(exchange.SCENARIOS) + 2
    again = page.computed("simulated", runs=lambda: exchange.runs(exchange.EVERY_FAULT[-1:])).splitlines()
    assert again == [*rows[:2], rows[-1]], f"run `{OPENED}`"


def test_a_changed_price_changes_the_written_page() -> None:
    start = f"before\n{page.block('prices', page.computed('prices'))}\nafter\n"
    assert page.written(start) == start
    dearer = SimpleNamespace(gpu_hour=figures.Figure(7.5, "$", "assumed", "H100 for an hour", ""))
    assert "| H100 for an hour | $7.5 |" in page.written(start, PRICES=dearer)


@pytest.mark.parametrize("cores", [2, 64])
def test_a_second_machine_saves_what_is_said_at_the_size_that_is_said(cores: int) -> None:
    cost = costs.CorpusCost(costs.bytes_worth_a_second_machine(3600.0, cores))
    assert cost.seconds(cores) - cost.seconds_on(2, cores) == pytest.approx(3600.0)
    measured = 2 / figures.CORPUS.core_seconds_per_mb.value
    assert costs.bytes_worth_a_second_machine(3600.0, cores, measured) == pytest.approx(cost.raw_bytes)


def test_one_process_alone_bounds_what_more_cores_give() -> None:
    cost, alone = costs.CorpusCost(1e12), figures.CORPUS.alone_share.value
    assert cost.seconds_today(1) == pytest.approx(cost.seconds(1))
    assert cost.seconds_today(10**9) == pytest.approx(alone * cost.seconds(1))


def test_the_models_have_the_parameters_that_their_names_say() -> None:
    for name, model in costs.MODELS.items():
        assert model.count.total == pytest.approx(float(name.split()[0]) * 1e6, rel=0.011)
        assert 6 * model.count.body < model.flops.training < 8 * model.count.total
        assert model.step_bytes < figures.TRAINING.gpu_gb.value * 1e9


def test_gpus_divide_the_time_until_gradients_take_longer_than_the_backward_pass() -> None:
    model = costs.MODELS["400 M"]
    one, eight, many = (costs.step_seconds(model, number) for number in (1, 8, 256))
    tokens, peak = figures.TRAINING.step_tokens.value, figures.TRAINING.peak_flops.value
    assert one == (pytest.approx(tokens * model.flops.training / (peak * 0.35)), 0.0)
    assert eight == (pytest.approx(one[0] / 8), 0.0)
    gradients = 2 * 255 / 256 * model.count.fp32_bytes / 50e9
    assert many == (pytest.approx(one[0] / 256), pytest.approx(gradients - 2 / 3 * one[0] / 256))
    assert costs.training_seconds(model, 3 * tokens, 256) == pytest.approx(3 * sum(many))


def test_a_fleet_has_cores_for_twice_its_requests() -> None:
    assert [costs.measured_fleet(rate).num_cores for rate in (355 / 2, 100_000)] == [2, 1127]
    assert costs.rate_of(2) == pytest.approx(355 / 2)
    assert costs.request_milliseconds(costs.MODELS["17 M"]) == costs.measured_milliseconds()


def test_a_number_has_two_digits_and_its_unit() -> None:
    assert [page.time_of(seconds) for seconds in (89.4, 95.0, 36 * 3600.0)] == ["89 s", "1.6 min", "1.5 days"]
    assert [page.bytes_of(size) for size in (2.34e12, 999.6e6)] == ["2.3 TB", "1 GB"]
    assert [page.count_of(number) for number in (10_000.0, 5.9e9)] == ["10,000", "5.9 billion"]
    assert [page.dollars_of(amount) for amount in (9_870.0, 0.004)] == ["$9,900", "under $0.01"]


TWO_PHASES, NO_LEDGER = [[10.0, 10.0], [5.0, 5.0]], Scenario(keeps_ledger=False)


@pytest.mark.parametrize(
    ("job", "outcome"),
    [
        (Job([[10.0] * 10, [5.0] * 10], 1, 1), Outcome(150.0, 20)),  # whole waves
        (Job([[10.0] * 10, [5.0] * 10], 3, 2), Outcome(30.0, 20)),
        (Job([[10.0, 1.0], [2.0, 2.0]], 1, 2), Outcome(12.0, 4)),  # none is reduced before the last one is mapped
        (Job([[10.0] * 4], 2, 1, losses=(15.0,)), Outcome(30.0, 5)),  # only the unrecorded task runs again
        (Job([[10.0] * 4], 2, 1, NO_LEDGER, losses=(15.0,)), Outcome(55.0, 8)),  # the whole job does
        (Job(TWO_PHASES, 2, 1, losses=(12.0,)), Outcome(20.0, 5)),  # records of an earlier phase survive
        (Job(TWO_PHASES, 2, 1, NO_LEDGER, losses=(12.0,)), Outcome(42.0, 8)),
    ],
)
def test_a_simulated_job_takes_what_can_be_worked_out_by_hand(job: Job, outcome: Outcome) -> None:
    assert job.run() == outcome


def test_the_bound_is_reached_by_whole_waves_and_never_beaten() -> None:
    even = [[10.0] * 8, [5.0] * 8]
    assert exchange.lower_bound(even, 4) == Job(even, 2, 2).run().seconds == 30.0
    uneven = [[float(number % 7 + 1) for number in range(50)], [30.0, 1.0, 1.0]]
    bound = exchange.lower_bound(uneven, 6)
    assert bound == pytest.approx(sum(uneven[0]) / 6 + 30.0)
    assert bound <= Job(uneven, 3, 2).run().seconds < 1.2 * bound


def test_failed_tries_are_repeated_and_cost_half_a_task_each() -> None:
    outcome = Job([[10.0] * 2000], 1, 1, Scenario(failure_share=0.05)).run()
    failed = outcome.tries - 2000
    assert failed == pytest.approx(2000 * 0.05 / 0.95, rel=0.2)
    assert outcome.seconds == pytest.approx(20_000 + failed * 5.0, rel=0.005)


def test_a_second_try_of_a_late_task_replaces_a_straggler_but_comes_after_waiting_tasks() -> None:
    def run(num_tasks: int, num_machines: int, slots: int, share: float, **policy: bool) -> Outcome:
        slow = Scenario(slow_share=share, slow_factor=10.0, **policy)
        return Job([[10.0] * num_tasks], num_machines, slots, slow).run()

    assert run(100, 100, 2, 0.02).seconds == 100.0
    twice = run(100, 100, 2, 0.02, speculates=True)
    assert twice.seconds == 25.0  # late after 15 s, then 10 s
    assert twice == run(100, 100, 2, 0.02, speculates=True)
    assert run(50, 1, 1, 0.1) == run(50, 1, 1, 0.1, speculates=True)
