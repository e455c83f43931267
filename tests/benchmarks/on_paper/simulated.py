"""The exchange with 10,000 partitions: times from the measured run, faults as assumed, on clusters of three sizes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from on_paper.corpus import CorpusCost
from on_paper.exchange import Cluster, Faults, Outcome, Policy, lower_bound, simulate
from on_paper.figures import CLUSTER, CORPUS

NUM_PARTITIONS = 10_000
MACHINES = (4, 16, 64)
SEED = 1
_SLOW = Faults(slow_share=CLUSTER.slow_share.value, slow_factor=CLUSTER.slow_factor.value)
_FAILING = Faults(failure_share=CLUSTER.failure_share.value)


@dataclass(frozen=True)
class Scenario:
    what: str
    faults: Faults = Faults()  # noqa: RUF009
    policy: Policy = Policy()  # noqa: RUF009
    loses_a_node: bool = False
    """One machine, for good, at half of the lower bound."""
    num_partitions: int = NUM_PARTITIONS
    """Partitions of the same text."""


_ALL = Faults(_SLOW.slow_share, _SLOW.slow_factor, _FAILING.failure_share)
EVERY_FAULT = (
    Scenario("all of it, neither", _ALL, Policy(keeps_ledger=False), loses_a_node=True),
    Scenario("all of it, ledger", _ALL, loses_a_node=True),
    Scenario("all of it, ledger and second tries", _ALL, Policy(speculates=True), loses_a_node=True),
)
SCENARIOS = (
    Scenario("nothing goes wrong"),
    Scenario("stragglers", _SLOW),
    Scenario("stragglers, second tries", _SLOW, Policy(speculates=True)),
    Scenario("stragglers, 40,000 partitions of 250 MB", _SLOW, num_partitions=4 * NUM_PARTITIONS),
    Scenario("failed tries", _FAILING),
    Scenario("a machine is lost, no ledger", policy=Policy(keeps_ledger=False), loses_a_node=True),
    Scenario("a machine is lost, ledger", loses_a_node=True),
    *EVERY_FAULT,
)


@dataclass(frozen=True)
class Run:
    outcome: Outcome
    bound: float
    """Lower bound of the seconds, without faults."""

    @property
    def factor(self) -> float:
        return self.outcome.seconds / self.bound


def phases(num_partitions: int) -> list[list[float]]:
    """Return the nominal seconds of the tasks before the exchange, and of those after it, with what they move."""
    cost = CorpusCost(NUM_PARTITIONS / num_partitions * CLUSTER.partition_gb.value * 1e9)
    after = CORPUS.after_share.value * cost.core_seconds
    moving = cost.exchanged_bytes * CLUSTER.machine_cores.value / (CLUSTER.machine_gb_per_s.value * 1e9)
    means = (cost.core_seconds - after + moving, after + moving)
    spread = CLUSTER.size_spread.value
    random = np.random.default_rng(SEED)
    return [(mean * random.lognormal(-(spread**2) / 2, spread, num_partitions)).tolist() for mean in means]


def run(scenario: Scenario, num_machines: int, tasks: Sequence[Sequence[float]]) -> Run:
    cluster = Cluster(num_machines, int(CLUSTER.machine_cores.value))
    bound = lower_bound(tasks, cluster.num_slots)
    losses = (bound / 2,) if scenario.loses_a_node else ()
    faults = replace(scenario.faults, losses=losses)
    return Run(simulate(tasks, cluster, faults, scenario.policy, seed=SEED), bound)


def runs(scenarios: Sequence[Scenario] = SCENARIOS) -> Iterator[tuple[Scenario, list[Run]]]:
    """Yield each scenario with its run on each number of machines."""
    for scenario in scenarios:
        tasks = phases(scenario.num_partitions)
        yield scenario, [run(scenario, num_machines, tasks) for num_machines in MACHINES]
