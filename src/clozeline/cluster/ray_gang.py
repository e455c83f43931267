"""A gang: one agent (`torchrun`) on each of several nodes, which Ray places."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import LocalRayletDiedError, RayError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from clozeline.cluster.ray_agent import ENDS_WITHIN_SECONDS, Agent, Heard
from clozeline.cluster.ray_connection import check_head, connection, first_line, gone, living, named, nodes, this_node
from clozeline.errors import ClusterError, TransientError

_LOG = logging.getLogger(__name__)
_PLACING_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 1.0
_OTHERS_FAIL_WITHIN_SECONDS: Final = 3.0
"""Time in which the agents of other nodes end with an error of their own, after the first one did."""
_AGENT_ANSWERS_WITHIN_SECONDS: Final = 60.0
"""Time in which Ray has an agent running on a node that is there; then the agent is started again."""
_MOST_STARTS: Final = 4
"""Starts of the agent of one place, as nodes die."""
_UNSPECIFIC: Final = (0, 1, TransientError.exit_code)
"""Exit codes of an agent whose peer has failed."""
_SIGNALLED: Final = 128


@dataclass(frozen=True)
class Size:
    """Number of nodes and of processes on each of them."""

    least: int
    most: int
    processes: int
    """One for each GPU of a node, where nodes have GPUs."""

    def __str__(self) -> str:
        num_nodes = str(self.most) if self.least == self.most else f"{self.least} to {self.most}"
        return f"{num_nodes} nodes with {self.processes} processes each"


@dataclass
class _Place:
    """A place of the gang, with the agent that has it now."""

    number: int
    agent: Any = None
    node: str = ""
    """What messages call the node; empty until its agent answers."""
    num_starts: int = 0
    started_at: float = 0.0


class Gang:
    """Agents on the nodes that Ray has reserved."""

    def __init__(self, group: PlacementGroup, size: Size) -> None:
        self._group = group
        self._size = size
        self._places = [_Place(number) for number in range(group.bundle_count)]
        self._reading: dict[Any, _Place] = {}
        self._exit_codes: list[int] = []

    @property
    def num_nodes(self) -> int:
        return len(self._places)

    @property
    def host(self) -> str:
        """Address of this machine, as the nodes know it."""
        return nodes()[this_node()]

    def run(self, command: Sequence[str], environment: Mapping[str, str], hear: Callable[[bytes], object]) -> int:
        """Run `command` in this folder of each node until all have ended, and return the exit code; 128 + n if we get
        signal n.

        The command of a node that died starts again on another one, if there is one.

        Args:
            environment: variables for the command; a node keeps its own values of the others.
            hear: gets the output of all nodes.

        Raises:
            TransientError: too few nodes are left, or the head is gone.
            ClusterError: the command does not start on a node.
        """
        what = (str(Path.cwd()), list(command), dict(os.environ), dict(environment))
        looked_at = ended_at = time.monotonic()
        with _signals() as received:
            try:
                for place in self._places:
                    self._start(place, what)
                while self._is_running(ended_at) and not received:
                    for done in ray.wait(list(self._reading), num_returns=1, timeout=_POLL_SECONDS)[0]:
                        self._take(done, what, hear)
                    if not any(self._exit_codes):
                        ended_at = time.monotonic()
                    if time.monotonic() - looked_at > _LOOK_SECONDS:
                        self._look(what)
                        looked_at = time.monotonic()
            finally:
                self._end()
        if received:
            return _SIGNALLED + received[0]
        telling = [code for code in self._exit_codes if code not in _UNSPECIFIC]
        return next(iter(telling or filter(None, self._exit_codes)), 0)

    def _is_running(self, ended_at: float) -> bool:
        """Return whether to wait further. An agent for which there is no node yet is not waited for at the end."""
        if any(self._exit_codes) and time.monotonic() - ended_at > _OTHERS_FAIL_WITHIN_SECONDS:
            return False
        return not self._exit_codes or any(place.node for place in self._reading.values())

    def _start(self, place: _Place, what: tuple[object, ...]) -> None:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place.number)
        bundle = self._group.bundle_specs[place.number]
        agents = ray.remote(num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0), max_concurrency=2)(Agent)
        place.agent = agents.options(scheduling_strategy=strategy).remote(*what)
        place.node = ""
        place.num_starts += 1
        place.started_at = time.monotonic()
        self._reading[place.agent.read.remote()] = place

    def _take(self, done: Any, what: tuple[object, ...], hear: Callable[[bytes], object]) -> None:
        place = self._reading.pop(done)
        try:
            heard: Heard = ray.get(done)
        except LocalRayletDiedError as error:
            raise gone(error) from error
        except RayError as error:
            self._lose(place, error)
            self._start(place, what)
            return
        place.node = place.node or named(heard.node)
        hear(heard.output)
        if heard.exit_code is None:
            self._reading[place.agent.read.remote()] = place
        else:
            self._exit_codes.append(heard.exit_code)

    def _lose(self, place: _Place, error: RayError) -> None:
        self._count(place, first_line(error))
        node = place.node or "(not started)"
        _LOG.warning("node %s is lost; the others go on from the newest checkpoint (%s)", node, first_line(error))

    def _count(self, place: _Place, reason: str) -> None:
        """Raises:
        ClusterError: the agent of this place was started often enough.
        """
        if place.num_starts == _MOST_STARTS:
            raise ClusterError(
                f"the training's agent on node {place.node or '(not started)'} ended {_MOST_STARTS} times: {reason}",
                do="see the logs of that node's raylet (/tmp/ray/session_latest/logs), then run the same command again",
            )

    def _look(self, what: tuple[object, ...]) -> None:
        """Start agents again that do not answer, although each place has a node.

        Raises:
            TransientError: the head is gone, or there are too few nodes, and no other could take a place.
        """
        check_head()
        silent = {reading: place for reading, place in self._reading.items() if not place.node}
        if not silent or self._exit_codes:
            return
        num_fitting = len(_fitting(self._group.bundle_specs[0]))
        if max(num_fitting, len(self._reading) - len(silent)) < self._size.least:
            raise TransientError(
                f"too few nodes are left for this training, which needs {self._size}: {_in_words() or 'none'}",
                do="start nodes (docs/cluster.md), and run the same command: it goes on from the newest checkpoint",
            )
        if num_fitting >= len(self._places):
            for reading, place in silent.items():
                if time.monotonic() - place.started_at > _AGENT_ANSWERS_WITHIN_SECONDS:
                    self._start_again(reading, place, what)

    def _start_again(self, reading: Any, place: _Place, what: tuple[object, ...]) -> None:
        silence = f"no answer within {_AGENT_ANSWERS_WITHIN_SECONDS:.0f} s"
        self._count(place, silence)
        _LOG.warning("place %d of %d: %s; it is started again", place.number + 1, len(self._places), silence)
        del self._reading[reading]
        ray.kill(place.agent)
        self._start(place, what)

    def _end(self) -> None:
        """End the agents that run, with all their processes."""
        ends = [place.agent.end.remote() for place in self._reading.values() if place.node]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=ENDS_WITHIN_SECONDS)


@contextmanager
def placed_gang(address: str, shared: Path, size: Size) -> Iterator[Gang]:
    """Yield a gang on as many nodes as there are, up to `size.most`, after a check of each node of the cluster.

    Raises:
        ClusterError: a node has other versions, or does not see `shared`; or there are fewer than `size.least` nodes.
        TransientError: other work has the nodes.
    """
    with connection(address, shared):
        has_gpus = any(node["Resources"].get("GPU") for node in living())
        bundle = {"CPU": float(size.processes)} | ({"GPU": float(size.processes)} if has_gpus else {})
        num_nodes = min(len(_fitting(bundle)), size.most)
        needed = f"{size}, each with a {'GPU and a ' if has_gpus else ''}CPU of its own"
        if num_nodes < size.least:
            raise ClusterError(
                f"the cluster has too few nodes for this training, which needs {needed}: {_in_words() or 'none'}",
                do="start nodes (docs/cluster.md), or lower --nnodes or --nproc-per-node",
            )
        group = placement_group([bundle] * num_nodes, strategy="STRICT_SPREAD")
        if not group.wait(_PLACING_SECONDS):
            raise TransientError(
                f"other work (`ray status`) had the nodes for {_PLACING_SECONDS:.0f} s; this training needs {needed}:"
                f" {_in_words()}",
                do="run the same command when that work is done, or lower --nnodes or --nproc-per-node",
            )
        yield Gang(group, size)


def _fitting(bundle: Mapping[str, float]) -> list[str]:
    """Return the ids of the nodes that are alive and have the resources of `bundle`, free or not."""
    return [
        node["NodeID"]
        for node in living()
        if all(node["Resources"].get(name, 0) >= number for name, number in bundle.items())
    ]


def _in_words() -> str:
    """Return each node that is alive with its CPUs and GPUs."""
    told = []
    for node in living():
        cpus, gpus = (int(node["Resources"].get(name, 0)) for name in ("CPU", "GPU"))
        told.append(f"{named(node['NodeID'])}: {cpus} CPUs" + (f", {gpus} GPUs" if gpus else ""))
    return "; ".join(told)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Note signals that end a command, instead of ending at once: the agents are ended first.

    An ignored signal (`nohup`) stays ignored.
    """
    received: list[int] = []
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    numbers = [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
