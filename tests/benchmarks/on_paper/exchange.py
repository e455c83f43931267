"""Discrete-event simulation of map → exchange → reduce on a cluster, with slow tries, failed tries and lost machines.

A job is a list of phases, a phase the nominal seconds of its tasks. A phase starts when the phase before is complete,
because each partition of an exchange reads the output of every earlier task. A slot runs one task at a time, the first
waiting task first. A finished task is recorded in the ledger, its output lies on shared storage.

Whether a try is slow or fails is drawn from (seed, phase, task, number of the try), so two scenarios under one seed
meet the same slow and the same failing tries.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from on_paper.costs import CorpusCost
from on_paper.figures import CLUSTER, CORPUS

NUM_PARTITIONS = 10_000
MACHINES = (4, 16, 64)
SEED = 1
LATE_FACTOR = 1.5
"""A try is late after this multiple of its task's nominal seconds."""
_NUM_DRAWS = 8
"""Tries of a task with draws of their own; further ones meet the same again."""


@dataclass(frozen=True)
class Scenario:
    """What goes wrong, and what is done about it. The defaults are a cluster where nothing does."""

    what: str = ""
    slow_share: float = 0.0
    """Share of tries that take `slow_factor` times as long, 0-1."""
    failure_share: float = 0.0
    """Share of tries that fail, at a moment drawn evenly from their duration, 0-1."""
    loses_a_machine: bool = False
    """One machine, for good, at half of the lower bound."""
    keeps_ledger: bool = True
    """Whether recorded tasks survive the loss of a machine; otherwise the whole job starts again."""
    speculates: bool = False
    """Whether a free slot without a waiting task gets a second try of a late task; the first to finish counts."""
    num_partitions: int = NUM_PARTITIONS
    """Partitions of the same text."""
    slow_factor: float = CLUSTER.slow_factor.value


@dataclass(frozen=True)
class Outcome:
    """A finished job."""

    seconds: float
    tries: int


@dataclass(frozen=True)
class _Try:
    task: int
    machine: int
    fails: bool


def lower_bound(phases: Sequence[Sequence[float]], num_slots: int) -> float:
    """Return the seconds that no schedule can beat if each try takes its nominal time.

    Each phase takes at least its work divided by the slots, and at least its longest task.
    """
    return sum(max(sum(phase) / num_slots, max(phase)) for phase in phases)


class Job:
    """Phases on machines of so many slots each, which are lost at `losses`, in seconds."""

    def __init__(
        self,
        phases: Sequence[Sequence[float]],
        num_machines: int,
        slots: int,
        scenario: Scenario = Scenario(),
        losses: Sequence[float] = (),
        seed: int = 0,
    ) -> None:
        self._phases, self._scenario, self._seed = phases, scenario, seed
        self._random = np.random.default_rng([seed, len(phases)])
        self._now = 0.0
        self._events: list[tuple[float, int, int, bool]] = []
        """Moment, running number (ties are served in its order), number of a try, and whether it is late or ends."""
        self._num_events = self._num_tries = 0
        self._running: dict[int, _Try] = {}
        self._late: deque[int] = deque()
        """Tries in the order in which they became late; some may have ended since."""
        self._alive = set(range(num_machines))
        self._free = deque(machine for _ in range(slots) for machine in range(num_machines))
        self._losses = deque(sorted(losses))
        self._start(0)

    def run(self) -> Outcome:
        while self._phase < len(self._phases):
            self._assign()
            if self._losses and self._losses[0] <= self._events[0][0]:
                self._now = self._losses.popleft()
                self._lose_machine()
                continue
            self._now, _, number, is_late = heappop(self._events)
            if number in self._running and is_late:
                self._late.append(number)
            elif number in self._running:
                self._end(number)
        return Outcome(self._now, self._num_tries)

    def _start(self, phase: int) -> None:
        self._phase = phase
        num_tasks = len(self._phases[phase]) if phase < len(self._phases) else 0
        self._waiting, self._left, self._next_draw = deque(range(num_tasks)), num_tasks, [0] * num_tasks
        self._tries_of: list[list[int]] = [[] for _ in range(num_tasks)]
        """Running tries of each task."""
        draws = np.random.default_rng([self._seed, phase]).random((num_tasks, _NUM_DRAWS, 3))
        self._draws: list[list[list[float]]] = draws.tolist()

    def _assign(self) -> None:
        while self._free and self._waiting:
            self._try(self._waiting.popleft())
        while self._free and self._late:
            number = self._late.popleft()
            if number in self._running and len(self._tries_of[self._running[number].task]) == 1:
                self._try(self._running[number].task)

    def _try(self, task: int) -> None:
        is_slow, fails, share = self._draws[task][self._next_draw[task] % _NUM_DRAWS]
        self._next_draw[task] += 1
        nominal = self._phases[self._phase][task]
        seconds = nominal * (self._scenario.slow_factor if is_slow < self._scenario.slow_share else 1.0)
        does_fail = fails < self._scenario.failure_share
        number, self._num_tries = self._num_tries, self._num_tries + 1
        self._running[number] = _Try(task, self._free.popleft(), does_fail)
        self._tries_of[task].append(number)
        self._schedule(seconds * (share if does_fail else 1.0), number, is_late=False)
        if self._scenario.speculates:
            self._schedule(nominal * LATE_FACTOR, number, is_late=True)

    def _schedule(self, seconds: float, number: int, *, is_late: bool) -> None:
        heappush(self._events, (self._now + seconds, self._num_events, number, is_late))
        self._num_events += 1

    def _end(self, number: int) -> None:
        one = self._release(number)
        if one.fails:
            self._wait_again(one.task)
            return
        for other in tuple(self._tries_of[one.task]):
            self._release(other)
        self._left -= 1
        if not self._left:
            self._start(self._phase + 1)

    def _release(self, number: int) -> _Try:
        one = self._running.pop(number)
        self._tries_of[one.task].remove(number)
        if one.machine in self._alive:
            self._free.append(one.machine)
        return one

    def _wait_again(self, task: int) -> None:
        if not self._tries_of[task]:
            self._waiting.append(task)

    def _lose_machine(self) -> None:
        lost = sorted(self._alive)[int(self._random.integers(len(self._alive)))]
        self._alive.remove(lost)
        self._free = deque(machine for machine in self._free if machine != lost)
        for number in [number for number, one in self._running.items() if one.machine == lost]:
            self._wait_again(self._release(number).task)
        if not self._scenario.keeps_ledger:
            for number in tuple(self._running):
                self._release(number)
            self._start(0)


_SLOW, _FAILING = CLUSTER.slow_share.value, CLUSTER.failure_share.value
EVERY_FAULT = (
    Scenario("all of it, neither", _SLOW, _FAILING, loses_a_machine=True, keeps_ledger=False),
    Scenario("all of it, ledger", _SLOW, _FAILING, loses_a_machine=True),
    Scenario("all of it, ledger and second tries", _SLOW, _FAILING, loses_a_machine=True, speculates=True),
)
SCENARIOS = (
    Scenario("nothing goes wrong"),
    Scenario("stragglers", _SLOW),
    Scenario("stragglers, second tries", _SLOW, speculates=True),
    Scenario("stragglers, 40,000 partitions of 250 MB", _SLOW, num_partitions=4 * NUM_PARTITIONS),
    Scenario("failed tries", failure_share=_FAILING),
    Scenario("a machine is lost, no ledger", loses_a_machine=True, keeps_ledger=False),
    Scenario("a machine is lost, ledger", loses_a_machine=True),
    *EVERY_FAULT,
)


def phases(num_partitions: int) -> list[list[float]]:
    """Return the nominal seconds of the tasks before the exchange, and of those after it, with what they move."""
    cost = CorpusCost(NUM_PARTITIONS / num_partitions * CLUSTER.partition_gb.value * 1e9)
    after = CORPUS.after_share.value * cost.core_seconds
    moving = cost.exchanged_bytes * CLUSTER.machine_cores.value / (CLUSTER.machine_gb_per_s.value * 1e9)
    means = (cost.core_seconds - after + moving, after + moving)
    spread = CLUSTER.size_spread.value
    random = np.random.default_rng(SEED)
    return [(mean * random.lognormal(-(spread**2) / 2, spread, num_partitions)).tolist() for mean in means]


def runs(scenarios: Sequence[Scenario] = SCENARIOS) -> Iterator[tuple[Scenario, list[tuple[float, float]]]]:
    """Yield each scenario; on each number of machines its seconds, and how many times the lower bound they are."""
    slots = int(CLUSTER.machine_cores.value)
    for scenario in scenarios:
        tasks = phases(scenario.num_partitions)
        found = []
        for num_machines in MACHINES:
            bound = lower_bound(tasks, num_machines * slots)
            losses = (bound / 2,) if scenario.loses_a_machine else ()
            seconds = Job(tasks, num_machines, slots, scenario, losses, SEED).run().seconds
            found.append((seconds, seconds / bound))
        yield scenario, found
