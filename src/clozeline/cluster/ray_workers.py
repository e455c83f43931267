"""The adapter of Ray: workers on the nodes of a cluster. Ray places tasks; which are repeated is decided here."""

import logging
import os
import pickle
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import LocalRayletDiedError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from clozeline.cluster.nodes import addresses, connection, first_line, gone, living, named, this_node
from clozeline.cluster.store import NodeCache, SharedStore
from clozeline.system.errors import ClozelineError, ClusterError, StorageError, TransientError
from clozeline.system.workers import IN_FLIGHT_PER_WORKER, Item, Result, Workers, prepare_worker

_LOG = logging.getLogger(__name__)
_MOST_ATTEMPTS = 4
_LOOK_SECONDS = 5.0
_CLEAR_SECONDS = 20.0

# Where tasks run: the project's folder, which all nodes have; or files that a node has fetched.
Folder = str | NodeCache


@dataclass(frozen=True)
class _Outcome:
    node: str  # id of the node
    result: Any = None
    error: Exception | None = None


@dataclass
class _Task:
    number: int
    item: Any
    outcome: _Outcome | None = None
    faults: list[str] = field(default_factory=list)
    failed_on: set[str] = field(default_factory=set)


class RayWorkers(Workers):
    """Maps functions over items on the nodes of a cluster; if these have no folder in common, they share a store."""

    def __init__(self, folder: Folder, store: SharedStore | None = None, *, trains: bool = False) -> None:
        super().__init__(None, 1)
        self.store = store
        self._folder = folder
        self._trains = trains
        self._nodes: dict[str, str] = {}
        self._num_slots = 1
        self._needs: dict[str, float] = {"num_cpus": 1}
        self._looked_at = -_LOOK_SECONDS
        self._attempt = ray.remote(num_cpus=1, max_retries=0)(_attempt)
        self._num_repeated = 0

    @property
    def note(self) -> str:
        return f"{len(self._nodes)} nodes" + (f", {self._num_repeated} tasks repeated" if self._num_repeated else "")

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield `function(item)` in the order of `items`. A task is repeated if its node dies or its disk fails.

        Raises:
            ClusterError: a task failed at each attempt; the message names it and the nodes.
        """
        waiting: deque[_Task] = deque()
        running: dict[Any, _Task] = {}
        for number, item in enumerate(items):
            task = _Task(number, item)
            waiting.append(task)
            self._look()
            running[self._submitted(function, task)] = task
            while len(waiting) >= self._num_slots * IN_FLIGHT_PER_WORKER:
                yield self._next_result(function, waiting, running)
        while waiting:
            yield self._next_result(function, waiting, running)

    def _next_result(
        self, function: Callable[[Item], Result], waiting: deque[_Task], running: dict[Any, _Task]
    ) -> Result:
        """Wait until the first task is done; meanwhile repeat whatever fails."""
        while waiting[0].outcome is None:
            self._look()
            for done in ray.wait(list(running), num_returns=1, timeout=_LOOK_SECONDS)[0]:
                task = running.pop(done)
                task.outcome = self._outcome_of(function, task, done)
                if task.outcome is None:
                    self._num_repeated += 1
                    running[self._submitted(function, task)] = task
        outcome = waiting.popleft().outcome
        assert outcome is not None
        result: Result = outcome.result
        return result

    def _submitted(self, function: Callable[[Item], Result], task: _Task) -> Any:
        others = [node for node in self._nodes if task.failed_on and node not in task.failed_on]
        where = NodeAffinitySchedulingStrategy(others[0], soft=True) if others else "SPREAD"
        return self._attempt.options(scheduling_strategy=where, **self._needs).remote(self._folder, function, task.item)

    def _outcome_of(self, function: Callable[[Item], Result], task: _Task, done: Any) -> _Outcome | None:
        """Return the outcome of an attempt; None if the task has to be repeated."""
        try:
            outcome: _Outcome = ray.get(done)
        except LocalRayletDiedError as error:
            raise gone(error) from error
        except RayError as error:
            fault, cause = f"its process ended: {first_line(error)}", error
        else:
            if outcome.error is None:
                return outcome
            cause = outcome.error
            fault = f"on node {named(outcome.node)}: {first_line(cause)}"
            task.failed_on.add(outcome.node)
            if isinstance(cause, ClozelineError) and not isinstance(cause, StorageError | TransientError):
                raise cause
        task.faults.append(fault)
        item = getattr(task.item, "name", f"item {task.number}")
        name = f"{function.__name__.strip('_')} of {item}"
        _LOG.warning("%s failed (attempt %d of %d): %s", name, len(task.faults), _MOST_ATTEMPTS, fault)
        if len(task.faults) == _MOST_ATTEMPTS:
            raise ClusterError(
                f"{name} failed {_MOST_ATTEMPTS} times: {'; '.join(dict.fromkeys(task.faults))}",
                do=cause.do
                if isinstance(cause, ClozelineError)
                else "mend what the node reports, then run again: tasks that are done stay done",
            ) from cause
        return None

    def _look(self) -> None:
        """Now and then, look which nodes there are.

        Raises:
            TransientError: the head is gone.
        """
        if time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return
        found = living()
        self._nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in found}
        cpus = [node["Resources"]["CPU"] for node in found if node["Resources"].get("CPU")]
        if self._trains and cpus:
            has_gpu = any(node["Resources"].get("GPU") for node in found)
            self._needs = {"num_cpus": max(1, int(min(cpus))), **({"num_gpus": 1} if has_gpu else {})}
        self._num_slots = max(1, int(sum(cpus) // self._needs["num_cpus"]))
        self._looked_at = time.monotonic()


@contextmanager
def ray_workers(
    address: str, shared: Path, store: SharedStore | None = None, *, trains: bool = False
) -> Iterator[RayWorkers]:
    """Yield the nodes of the cluster at `address`, after a check of each.

    Raises:
        ClusterError: this machine is not a node of it; or a node has other versions, or does not see `shared`, or the
            store in its place.
    """
    with connection(address, shared, store):
        if store is None:
            yield RayWorkers(str(Path.cwd()), trains=trains)
            return
        cache = NodeCache(secrets.token_hex(8))
        try:
            yield RayWorkers(cache, store, trains=trains)
        finally:
            _clear(cache)


def _clear(cache: NodeCache) -> None:
    """Remove the files that nodes have fetched. What a lost node keeps is removed later, by its next run."""
    with suppress(RayError, ClozelineError):
        clear = ray.remote(num_cpus=0, max_retries=0)(NodeCache.clear)
        on_nodes = [NodeAffinitySchedulingStrategy(node, soft=False) for node in addresses()]
        ends = [clear.options(scheduling_strategy=strategy).remote(cache) for strategy in on_nodes]
        ray.wait(ends, num_returns=len(ends), timeout=_CLEAR_SECONDS)


def _attempt(folder: Folder, function: Callable[[Any], Any], item: Any) -> _Outcome:
    """Run one attempt in the project's folder, or in that of fetched files."""
    os.chdir(folder.path() if isinstance(folder, NodeCache) else folder)
    prepare_worker()
    try:
        return _Outcome(this_node(), function(item))
    except Exception as error:  # noqa: BLE001  # the waiting process decides what becomes of it
        return _Outcome(this_node(), error=_portable(error))


def _portable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    except Exception:  # noqa: BLE001  # whatever the class of the error does when it is copied
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
