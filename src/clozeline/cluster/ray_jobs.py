"""Whole commands on the nodes of a Ray cluster. Ray chooses the node; a command whose node dies runs on another."""

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import ray
from ray.exceptions import LocalRayletDiedError, RayError

from clozeline.cluster.nodes import NodeFacts, Token, check_nodes, facts_of, token_in
from clozeline.cluster.ray_connection import (
    check_head,
    first_line,
    gone,
    living,
    named,
    this_node,
    unchecked_connection,
)
from clozeline.errors import ClusterError, TransientError
from clozeline.machine import supervised
from clozeline.machine.cores import MOST
from clozeline.machine.memory import available_bytes, out_of_memory_kills

_LOG = logging.getLogger(__name__)
_MOST_ATTEMPTS: Final = 4
_WAIT_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 5.0
_END_SECONDS: Final = 10.0  # longer than `supervised.end` takes
_READ_BYTES: Final = 65_536
_OF_THE_NODE: Final = ("CUDA_VISIBLE_DEVICES", "HOME", "HOSTNAME", "LD_LIBRARY_PATH", "LOGNAME", "TMPDIR", "USER")
"""Environment variables that describe a machine; a command has all others from the machine that sends it."""


@dataclass(frozen=True)
class JobEnded:
    """A command that ended on a node."""

    node: str
    exit_code: int
    out_of_memory_kills: int | None
    """Out-of-memory kills on the node meanwhile; None if its kernel does not count them."""
    available_bytes: int
    """Memory that all programs of the node may use together."""


class StoppedError(Exception):
    """A signal asked this process to end; its command has ended."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True)
class _Room:
    """What each command takes of a node: as much as the smallest node has, so that any node can run it."""

    cpus: float
    gpus: float


class _Process:
    """A command on a node: an actor of Ray, which ends with the process that sent it."""

    def facts(self, token: Token) -> NodeFacts:
        return facts_of(named(this_node()), token)

    def start(self, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
        own = {name: os.environ[name] for name in _OF_THE_NODE if name in os.environ}
        others = {name: value for name, value in environment.items() if name not in _OF_THE_NODE}
        self._kills_before = out_of_memory_kills()
        self._output, given = os.pipe()
        self._process = supervised.start(
            command,
            folder=Path(folder),
            environment=others | own,
            output=given,
            errors=given,
            is_shielded=True,  # Ray kills the children of its processes; the supervisor has to end the command first
        )
        os.close(given)

    def read(self) -> bytes:
        """Return what the command has written next; nothing at its end."""
        return os.read(self._output, _READ_BYTES)

    def ended(self) -> JobEnded:
        exit_code, kills = self._process.wait(), out_of_memory_kills()
        meanwhile = None if kills is None or self._kills_before is None else kills - self._kills_before
        return JobEnded(named(this_node()), exit_code, meanwhile, available_bytes())

    def end(self) -> None:
        supervised.end(self._process)


class _Watch:
    """What may end the wait for a node: a signal to this process, or the end of the head."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._looked_at = time.monotonic()

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Self]:
        """Note SIGTERM and SIGINT during the block: the command has to end first, and Ray would drop an exception."""
        watch = cls()
        before = {number: signal.signal(number, watch._note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield watch
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def wait(self, asked: Any) -> bool:
        """Wait for an answer a little; return whether it is there.

        Raises:
            StoppedError: this process got a signal.
            TransientError: the head is gone.
        """
        if self._number is not None:
            raise StoppedError(self._number)
        if time.monotonic() - self._looked_at > _LOOK_SECONDS:
            check_head()
            self._looked_at = time.monotonic()
        return bool(ray.wait([asked], timeout=_WAIT_SECONDS)[0])

    def answer(self, asked: Any) -> Any:
        while not self.wait(asked):
            pass
        return ray.get(asked)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._number = number


class _Lines:
    """Passes on whole lines, so that those of several commands do not mix; an empty chunk is the end."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._rest = b""

    def __call__(self, chunk: bytes) -> None:
        whole, newline, self._rest = (self._rest + (chunk or (self._rest and b"\n"))).rpartition(b"\n")
        self._write(whole + newline)


@dataclass(frozen=True)
class _Job:
    command: Sequence[str]
    environment: Mapping[str, str]
    shared: Path
    write: Callable[[bytes], object]
    watch: _Watch

    def run(self) -> JobEnded:
        """Run the command to its end, on another node if its node ends before."""
        faults: list[str] = []
        while len(faults) < _MOST_ATTEMPTS:
            try:
                return self.attempt()
            except LocalRayletDiedError as error:
                raise gone(error) from error
            except RayError as error:
                faults.append(first_line(error))
                _LOG.warning("its node ended (attempt %d of %d): %s", len(faults), _MOST_ATTEMPTS, faults[-1])
        raise ClusterError(
            f"{len(faults)} nodes ended while they ran one command: {'; '.join(dict.fromkeys(faults))}",
            do="see what ended them (memory?; `ray status` lists the nodes that are left), then run again",
        )

    def attempt(self) -> JobEnded:
        """Run the command to its end on one node.

        Raises:
            RayError: its node ended before.
        """
        with self._process() as (process, room):
            environment = {**self.environment, MOST: f"{room.cpus:.0f}"}
            self.watch.answer(process.start.remote(self.command, str(Path.cwd()), environment))
            try:
                chunk = None
                while chunk != b"":
                    chunk = self.watch.answer(process.read.remote())
                    self.write(chunk)
                ended: JobEnded = self.watch.answer(process.ended.remote())
                return ended
            finally:
                with suppress(RayError):
                    ray.get(process.end.remote(), timeout=_END_SECONDS)

    @contextmanager
    def _process(self) -> Iterator[tuple[Any, _Room]]:
        """Yield a process of a checked node, once one has room; nodes may come and go meanwhile."""
        kind = ray.remote(max_restarts=0, max_concurrency=2)(_Process)  # one reads, the other may end
        while True:
            room = _room()
            options = {"num_cpus": room.cpus, "num_gpus": room.gpus, "scheduling_strategy": "SPREAD"}
            process = kind.options(**options).remote()
            try:
                if self._is_placed(process, room):
                    yield process, room
                    return
            finally:
                ray.kill(process)

    def _is_placed(self, process: Any, room: _Room) -> bool:
        """Return whether the process has a node, which is then checked; False if its room is no longer right."""
        with token_in(self.shared) as token:
            asked = process.facts.remote(token)
            while not self.watch.wait(asked):
                if _room() != room:
                    return False
            facts = ray.get(asked)
            check_nodes([facts], facts_of("here", token), self.shared)
        _LOG.info("runs on node %s", facts.node)
        return True


def run_jobs(
    address: str,
    shared: Path,
    commands: Sequence[Sequence[str]],
    environment: Mapping[str, str],
    write: Callable[[bytes], object],
) -> list[JobEnded]:
    """Run `commands` side by side in the current folder, each on a node of the cluster at `address`.

    `write` gets their output, of several by whole lines. Each may use as many cores as the smallest node has, so that
    its results do not depend on the node.

    Raises:
        ClusterError: this machine is not a node; the chosen node has other versions, or does not see the folder
            `shared`; or each attempt ended with its node.
        TransientError: the cluster is gone, or none of its nodes runs commands.
        StoppedError: this process got SIGTERM or SIGINT.
    """
    with unchecked_connection(address), _Watch.open() as watch, ThreadPoolExecutor(len(commands)) as threads:
        jobs = [
            _Job(command, environment, shared, write if len(commands) == 1 else _Lines(write), watch)
            for command in commands
        ]
        return list(threads.map(_Job.run, jobs))


def _room() -> _Room:
    """Return the share of the smallest node; of those with GPUs, if any has one.

    Raises:
        TransientError: no node runs commands.
    """
    have = [Counter(node["Resources"]) for node in _workers()]
    gpus = [one for one in have if one["GPU"]]
    fitting = gpus or have
    return _Room(min(one["CPU"] for one in fitting), min(one["GPU"] for one in fitting))


def _workers() -> list[dict[str, Any]]:
    """Return the nodes that are alive and have cores for commands."""
    alive = living()
    found = [node for node in alive if node["Resources"].get("CPU")]
    if not found:
        raise TransientError(
            f"no node of the cluster runs commands: {len(alive)} nodes, all without cores (`--num-cpus=0`)",
            do="start one with cores: `ray start --address=HEAD:6379` (docs/cluster.md)",
        )
    return found
