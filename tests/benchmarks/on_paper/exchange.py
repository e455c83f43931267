"""Discrete-event simulation of map → exchange → reduce on a cluster, with slow tries, failed tries and lost nodes.

A job is a list of phases, a phase the nominal seconds of its tasks. A phase starts when the phase before is complete,
because each partition of an exchange reads the output of every earlier task. A slot runs one task at a time, the first
waiting task first. A finished task is recorded in the ledger, its output lies on shared storage.

Whether a try is slow or fails is drawn from (seed, phase, task, number of the try), so two policies under one seed meet
the same slow and the same failing tries.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from on_paper.costs import CorpusCost
from on_paper.figures import CLUSTER, CORPUS

MOST_FAILURES = 4
"""Failures of one task after which the job gives up."""


@dataclass(frozen=True)
class Cluster:
    num_nodes: int
    slots_per_node: int

    @property
    def num_slots(self) -> int:
        return self.num_nodes * self.slots_per_node


@dataclass(frozen=True)
class Faults:
    """What goes wrong. The defaults are a cluster where nothing does."""

    slow_share: float = 0.0
    """Share of tries that take `slow_factor` times as long, 0-1."""
    slow_factor: float = 1.0
    failure_share: float = 0.0
    """Share of tries that fail, at a moment drawn evenly from their duration, 0-1."""
    losses: tuple[float, ...] = ()
    """Seconds at which a node is lost for good, with its tries; the node is drawn."""


@dataclass(frozen=True)
class Policy:
    speculates: bool = False
    """Whether a free slot without a waiting task gets a second try of a late task; the first to finish counts."""
    late_factor: float = 1.5
    """A try is late after this multiple of its task's nominal seconds."""
    keeps_ledger: bool = True
    """Whether recorded tasks survive the loss of a node; otherwise the whole job starts again."""


@dataclass(frozen=True)
class Outcome:
    """A finished job. Every try ends as exactly one of: recorded, failed, lost with its node, superseded."""

    seconds: float
    tries: int
    recorded: int
    failed: int
    lost: int
    """Tries on lost nodes; without a ledger also all other tries and records of the job so far."""
    superseded: int
    """Tries that ended because another try of the task finished first."""


@dataclass(frozen=True)
class _Try:
    task: int
    node: int
    fails: bool


def lower_bound(phases: Sequence[Sequence[float]], num_slots: int) -> float:
    """Return the seconds that no schedule can beat if each try takes its nominal time.

    Each phase takes at least its work divided by the slots, and at least its longest task.
    """
    return sum(max(sum(phase) / num_slots, max(phase)) for phase in phases)


def simulate(
    phases: Sequence[Sequence[float]],
    cluster: Cluster,
    faults: Faults = Faults(),
    policy: Policy = Policy(),
    *,
    seed: int = 0,
) -> Outcome:
    """Run the job to its end.

    Raises:
        RuntimeError: a task failed `MOST_FAILURES` times, or no node is left.
    """
    return _Job(phases, cluster, faults, policy, seed).run()


class _Job:
    def __init__(
        self, phases: Sequence[Sequence[float]], cluster: Cluster, faults: Faults, policy: Policy, seed: int
    ) -> None:
        self._phases, self._faults, self._policy, self._seed = phases, faults, policy, seed
        self._random = np.random.default_rng([seed, len(phases)])
        self._now = 0.0
        self._events: list[tuple[float, int, int, bool]] = []
        """Moment, running number (ties are served in its order), number of a try, and whether it is late or ends."""
        self._num_events = 0
        self._running: dict[int, _Try] = {}
        self._late: deque[int] = deque()
        """Tries in the order in which they became late; some may have ended since."""
        self._alive = set(range(cluster.num_nodes))
        self._free = deque(node for _ in range(cluster.slots_per_node) for node in range(cluster.num_nodes))
        self._losses = deque(sorted(faults.losses))
        self._num_tries = self._failed = self._lost = self._superseded = 0
        self._start(0)

    def run(self) -> Outcome:
        while self._phase < len(self._phases):
            self._assign()
            if self._losses and self._losses[0] <= self._events[0][0]:
                self._now = self._losses.popleft()
                self._lose_node()
                continue
            self._now, _, number, is_late = heappop(self._events)
            if number not in self._running:
                continue
            if is_late:
                self._late.append(number)
            else:
                self._end(number)
        recorded = sum(map(len, self._phases))
        return Outcome(self._now, self._num_tries, recorded, self._failed, self._lost, self._superseded)

    def _start(self, phase: int) -> None:
        self._phase = phase
        num_tasks = len(self._phases[phase]) if phase < len(self._phases) else 0
        self._waiting, self._left = deque(range(num_tasks)), num_tasks
        self._tries_of: list[list[int]] = [[] for _ in range(num_tasks)]
        """Running tries of each task."""
        self._failures, self._next_draw = [0] * num_tasks, [0] * num_tasks
        draws = np.random.default_rng([self._seed, phase]).random((num_tasks, 2 * MOST_FAILURES, 3))
        self._draws: list[list[list[float]]] = draws.tolist()

    def _assign(self) -> None:
        while self._free and self._waiting:
            self._try(self._waiting.popleft())
        while self._free and self._late:
            number = self._late.popleft()
            if number in self._running and len(self._tries_of[self._running[number].task]) == 1:
                self._try(self._running[number].task)

    def _try(self, task: int) -> None:
        is_slow, fails, share = self._draws[task][self._next_draw[task] % (2 * MOST_FAILURES)]
        self._next_draw[task] += 1
        nominal = self._phases[self._phase][task]
        seconds = nominal * (self._faults.slow_factor if is_slow < self._faults.slow_share else 1.0)
        does_fail = fails < self._faults.failure_share
        number, self._num_tries = self._num_tries, self._num_tries + 1
        self._running[number] = _Try(task, self._free.popleft(), does_fail)
        self._tries_of[task].append(number)
        self._schedule(seconds * (share if does_fail else 1.0), number, is_late=False)
        if self._policy.speculates:
            self._schedule(nominal * self._policy.late_factor, number, is_late=True)

    def _schedule(self, seconds: float, number: int, *, is_late: bool) -> None:
        heappush(self._events, (self._now + seconds, self._num_events, number, is_late))
        self._num_events += 1

    def _end(self, number: int) -> None:
        one = self._release(number)
        if one.fails:
            self._failed += 1
            self._failures[one.task] += 1
            if self._failures[one.task] == MOST_FAILURES:
                raise RuntimeError(f"task {one.task} of phase {self._phase} failed {MOST_FAILURES} times")
            self._wait_again(one.task)
            return
        for other in tuple(self._tries_of[one.task]):
            self._release(other)
            self._superseded += 1
        self._left -= 1
        if not self._left:
            self._start(self._phase + 1)

    def _release(self, number: int) -> _Try:
        one = self._running.pop(number)
        self._tries_of[one.task].remove(number)
        if one.node in self._alive:
            self._free.append(one.node)
        return one

    def _wait_again(self, task: int) -> None:
        if not self._tries_of[task]:
            self._waiting.append(task)

    def _lose_node(self) -> None:
        node = sorted(self._alive)[int(self._random.integers(len(self._alive)))]
        self._alive.remove(node)
        if not self._alive:
            raise RuntimeError(f"no node is left after {self._now:.0f} s")
        self._free = deque(other for other in self._free if other != node)
        for number in [number for number, one in self._running.items() if one.node == node]:
            self._wait_again(self._release(number).task)
            self._lost += 1
        if not self._policy.keeps_ledger:
            self._start_again()

    def _start_again(self) -> None:
        finished = sum(map(len, self._phases[: self._phase])) + len(self._phases[self._phase]) - self._left
        self._lost += len(self._running) + finished
        for number in tuple(self._running):
            self._release(number)
        self._start(0)


NUM_PARTITIONS = 10_000
MACHINES = (4, 16, 64)
SEED = 1
_SLOW = Faults(slow_share=CLUSTER.slow_share.value, slow_factor=CLUSTER.slow_factor.value)
_FAILING = Faults(failure_share=CLUSTER.failure_share.value)


@dataclass(frozen=True)
class Scenario:
    what: str
    faults: Faults = Faults()
    policy: Policy = Policy()
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
