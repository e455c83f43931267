"""Whole commands on the nodes of a Ray cluster. Ray chooses the node; a command whose node dies runs on another.

An agent is a process of Ray that runs the command of its node and passes its output on. A gang is one command
(`torchrun`) on several nodes, with an agent on each.
"""

import logging
import os
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import LocalRayletDiedError, RayError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from clozeline.cluster import nodes
from clozeline.system import errors, processes
from clozeline.system.machine import MOST, available_bytes, out_of_memory_kills

_LOG = logging.getLogger(__name__)
_MOST_ATTEMPTS = 4
_WAIT_SECONDS = 0.5
_LOOK_SECONDS = 5.0
_END_SECONDS = 10.0  # longer than `supervised.end` takes
_READ_BYTES = 65_536
# Environment variables that describe a machine; a command has all others from the machine that sends it.
_OF_THE_NODE = ("CUDA_VISIBLE_DEVICES", "HOME", "HOSTNAME", "LD_LIBRARY_PATH", "LOGNAME", "TMPDIR", "USER")

ENDS_WITHIN_SECONDS = 15.0  # longer than the supervisor takes
_READ_SECONDS = 2.0
# The supervisor ends its command last: here a shell, so that torchrun gets its signal before its processes have ended.
# Otherwise it would start them again, and other nodes would wait for them.
_AT_ONCE = ("/bin/sh", "-c", '"$@"; exit $?', "sh")

_PLACING_SECONDS = 60.0
# Time in which the agents of other nodes end with an error of their own, after the first one did.
_OTHERS_FAIL_WITHIN_SECONDS = 3.0
# Time in which Ray has an agent running on a node that is there; then the agent is started again.
_AGENT_ANSWERS_WITHIN_SECONDS = 60.0
# Starts of the agent of one place, as nodes die.
_MOST_STARTS = 4
# Exit codes of an agent whose peer has failed.
_UNSPECIFIC = (0, 1, errors.TransientError.exit_code)
_SIGNALLED = 128


@dataclass(frozen=True)
class JobEnded:
    """A command that ended on a node."""

    node: str
    exit_code: int
    out_of_memory_kills: int | None  # out-of-memory kills on the node meanwhile; None if its kernel does not count them
    available_bytes: int  # memory that all programs of the node may use together


class StoppedError(Exception):
    """A signal asked this process to end; its command has ended."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True)
class Heard:
    """What an agent tells."""

    node: str  # its id
    output: bytes
    ended: JobEnded | None  # None while the command runs


class Agent:
    """A command on a node: an actor of Ray. If Ray ends this process, or it is killed, the supervisor ends the command.

    Ray kills (-9) the children of a process that it ends: a shield keeps the supervisor from being one of them.
    """

    def __init__(self, *started: Any) -> None:
        """`started`: what `start` takes, to start at once."""
        self._patience_seconds = 0.0  # the first answer says that the command runs, and has to be ended
        if started:
            self.start(*started)

    def facts(self, token: nodes.Token) -> nodes.NodeFacts:
        return nodes.facts_of(token)

    def start(
        self, command: Sequence[str], folder: str, sent: Mapping[str, str], of_gang: Mapping[str, str] | None = None
    ) -> None:
        """Start `command` with the environment of its sender, but for what describes the machine.

        In a gang the node keeps its own values of all variables but `of_gang`.
        """
        kept = _OF_THE_NODE if of_gang is None else os.environ.keys() - {"OMP_NUM_THREADS"}  # Ray sets it
        environment = {name: value for name, value in sent.items() if name not in _OF_THE_NODE}
        environment |= {name: os.environ[name] for name in kept if name in os.environ}
        if of_gang is not None:
            environment |= {"PET_LOCAL_ADDR": nodes.addresses()[nodes.this_node()], **of_gang}
        self._kills_before = out_of_memory_kills()
        self._output, given = os.pipe()
        self._process = processes.start(
            command, folder=Path(folder), environment=environment, output=given, errors=given, is_shielded=True
        )
        os.close(given)

    def read(self) -> Heard:
        """Return what was written since the last call, after 2 s at most; the end comes when there is no more."""
        has_more = select.select([self._output], [], [], self._patience_seconds)[0]
        self._patience_seconds = _READ_SECONDS
        written = os.read(self._output, _READ_BYTES) if has_more else b""
        return Heard(nodes.this_node(), written, self._ended() if has_more and not written else None)

    def end(self) -> None:
        processes.end(self._process)

    def _ended(self) -> JobEnded:
        exit_code, kills = self._process.wait(), out_of_memory_kills()
        meanwhile = None if kills is None or self._kills_before is None else kills - self._kills_before
        return JobEnded(nodes.this_node(), exit_code, meanwhile, available_bytes())


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Note signals that end a command, instead of ending at once: the agents are ended first, and Ray would drop an
    exception.

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


class _Watch:
    """What may end the wait for a node: a signal to this process, or the end of the head, which `look` notices."""

    def __init__(self, received: Sequence[int], look: Callable[[], None] = nodes.check_head) -> None:
        self._received, self._look = received, look
        self._looked_at = time.monotonic()

    def done(self, asked: Collection[Any]) -> list[Any]:
        """Wait a little until one of the questions is answered, of which `look` may change some; return those that are.

        Raises:
            StoppedError: this process got a signal.
            TransientError: the head is gone.
        """
        if self._received:
            raise StoppedError(self._received[0])
        if time.monotonic() - self._looked_at > _LOOK_SECONDS:
            self._look()
            self._looked_at = time.monotonic()
        answered: list[Any] = ray.wait(list(asked), timeout=_WAIT_SECONDS)[0]  # only now, after the look
        return answered

    def answer(self, asked: Any) -> Any:
        while not self.done([asked]):
            pass
        return ray.get(asked)


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
            room = _room()
            options = {"max_restarts": 0, "max_concurrency": 2, **room}  # one call reads, the other may end
            agent = ray.remote(scheduling_strategy="SPREAD", **options)(Agent).remote()
            try:
                if self._is_placed(agent, room):
                    return self._run_by(agent, room)
            except LocalRayletDiedError as error:
                raise nodes.gone(error) from error
            except RayError as error:
                faults.append(nodes.first_line(error))
                _LOG.warning("its node ended (attempt %d of %d): %s", len(faults), _MOST_ATTEMPTS, faults[-1])
            finally:
                ray.kill(agent)
        raise errors.ClusterError(
            f"{len(faults)} nodes ended while they ran one command: {'; '.join(dict.fromkeys(faults))}",
            do="see what ended them (memory?; `ray status` lists the nodes that are left), then run again",
        )

    def _is_placed(self, agent: Any, room: Mapping[str, float]) -> bool:
        """Return whether the agent has a node, which is then checked; False if its room is no longer right, as nodes
        come and go.
        """
        with nodes.token_in(self.shared) as token:
            asked = agent.facts.remote(token)
            while not self.watch.done([asked]):
                if _room() != room:
                    return False
            facts = ray.get(asked)
            nodes.check_nodes([facts], nodes.facts_of(token, "here"), self.shared)
        _LOG.info("runs on node %s", facts.node)
        return True

    def _run_by(self, agent: Any, room: Mapping[str, float]) -> JobEnded:
        environment = {**self.environment, MOST: f"{room['num_cpus']:.0f}"}
        self.watch.answer(agent.start.remote(self.command, str(Path.cwd()), environment))
        try:
            while True:
                heard: Heard = self.watch.answer(agent.read.remote())
                if heard.output or heard.ended:
                    self.write(heard.output)
                if heard.ended:
                    return replace(heard.ended, node=nodes.named(heard.node))
        finally:
            with suppress(RayError):
                ray.get(agent.end.remote(), timeout=_END_SECONDS)


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
    with nodes.unchecked_connection(address), _signals() as received, ThreadPoolExecutor(len(commands)) as threads:
        watch = _Watch(received)
        jobs = [
            _Job(command, environment, shared, write if len(commands) == 1 else _Lines(write), watch)
            for command in commands
        ]
        return list(threads.map(_Job.run, jobs))


def _room() -> dict[str, float]:
    """Return what each command takes of a node: as much as the smallest one has, so that any of them can run it; of
    those with GPUs, if any has one.

    Raises:
        TransientError: no node runs commands.
    """
    alive = nodes.living()
    have = [Counter(node["Resources"]) for node in alive if node["Resources"].get("CPU")]
    if not have:
        raise errors.TransientError(
            f"no node of the cluster runs commands: {len(alive)} nodes, all without cores (`--num-cpus=0`)",
            do="start one with cores: `ray start --address=HEAD:6379` (docs/cluster.md)",
        )
    fitting = [one for one in have if one["GPU"]] or have
    return {"num_cpus": min(one["CPU"] for one in fitting), "num_gpus": min(one["GPU"] for one in fitting)}


@dataclass(frozen=True)
class GangSize:
    """Number of nodes and of processes on each of them."""

    least: int
    most: int
    processes: int  # one for each GPU of a node, where nodes have GPUs

    def __str__(self) -> str:
        num_nodes = str(self.most) if self.least == self.most else f"{self.least} to {self.most}"
        return f"{num_nodes} nodes with {self.processes} processes each"


@dataclass
class _Place:
    """A place of the gang, with the agent that has it now."""

    number: int
    write: Callable[[bytes], object]
    agent: Any = None
    node: str = ""  # what messages call the node; empty until its agent answers
    num_starts: int = 0
    started_at: float = 0.0


class Gang:
    """Agents on the nodes that Ray has reserved."""

    def __init__(self, group: PlacementGroup, size: GangSize) -> None:
        self._group = group
        self.num_nodes = int(group.bundle_count)
        self._size = size
        self._places: list[_Place] = []
        self._reading: dict[Any, _Place] = {}
        self._exit_codes: list[int] = []
        self._started: tuple[object, ...] = ()  # what each agent starts

    @property
    def host(self) -> str:
        """Address of this machine, as the nodes know it."""
        return nodes.addresses()[nodes.this_node()]

    def run(self, command: Sequence[str], environment: Mapping[str, str], hear: Callable[[bytes], object]) -> int:
        """Run `command` in this folder of each node until all have ended, and return the exit code; 128 + n if we get
        signal n.

        The command of a node that died starts again on another one, if there is one.

        Args:
            environment: variables for the command; a node keeps its own values of the others.
            hear: gets the output of all nodes, by whole lines.

        Raises:
            TransientError: too few nodes are left, or the head is gone.
            ClusterError: the command does not start on a node.
        """
        self._started = ([*_AT_ONCE, *command], str(Path.cwd()), dict(os.environ), dict(environment))
        self._places = [_Place(number, _Lines(hear)) for number in range(self.num_nodes)]
        with _signals() as received:
            watch, ended_at = _Watch(received, self._look), time.monotonic()
            try:
                for place in self._places:
                    self._start(place)
                while self._is_running(ended_at):
                    for done in watch.done(self._reading):
                        self._take(done)
                    if not any(self._exit_codes):
                        ended_at = time.monotonic()
            except StoppedError as stopped:
                return _SIGNALLED + stopped.number
            finally:  # end the agents that run, with all their processes
                ends = [place.agent.end.remote() for place in self._reading.values() if place.node]
                if ends:
                    ray.wait(ends, num_returns=len(ends), timeout=ENDS_WITHIN_SECONDS)
        telling = [code for code in self._exit_codes if code not in _UNSPECIFIC]
        return next(iter(telling or filter(None, self._exit_codes)), 0)

    def _is_running(self, ended_at: float) -> bool:
        """Return whether to wait further. An agent for which there is no node yet is not waited for at the end."""
        if any(self._exit_codes) and time.monotonic() - ended_at > _OTHERS_FAIL_WITHIN_SECONDS:
            return False
        return not self._exit_codes or any(place.node for place in self._reading.values())

    def _start(self, place: _Place) -> None:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place.number)
        bundle = self._group.bundle_specs[place.number]
        agents = ray.remote(num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0), max_concurrency=2)(Agent)
        place.agent = agents.options(scheduling_strategy=strategy).remote(*self._started)
        place.node = ""
        place.num_starts += 1
        place.started_at = time.monotonic()
        self._reading[place.agent.read.remote()] = place

    def _take(self, done: Any) -> None:
        place = self._reading.pop(done)
        try:
            heard: Heard = ray.get(done)
        except LocalRayletDiedError as error:
            raise nodes.gone(error) from error
        except RayError as error:
            self._start_again(place, nodes.first_line(error))
            return
        place.node = place.node or nodes.named(heard.node)
        if heard.output or heard.ended:
            place.write(heard.output)
        if heard.ended:
            self._exit_codes.append(heard.ended.exit_code)
        else:
            self._reading[place.agent.read.remote()] = place

    def _start_again(self, place: _Place, reason: str) -> None:
        """Raises:
        ClusterError: the agent of this place was started often enough.
        """
        node = place.node or "(not started)"
        if place.num_starts == _MOST_STARTS:
            raise errors.ClusterError(
                f"the training's agent on node {node} ended {_MOST_STARTS} times: {reason}",
                do="see the logs of that node's raylet (/tmp/ray/session_latest/logs), then run the same command again",
            )
        place.write(b"")
        where = f"place {place.number + 1} of {self.num_nodes}"
        _LOG.warning("%s: %s; it is started again, and the others go on from the newest checkpoint", where, reason)
        self._start(place)

    def _look(self) -> None:
        """Start agents again that do not answer, although each place has a node.

        Raises:
            TransientError: the head is gone, or there are too few nodes, and no other could take a place.
        """
        nodes.check_head()
        silent = {reading: place for reading, place in self._reading.items() if not place.node}
        if not silent or self._exit_codes:
            return
        num_fitting = len(_fitting(self._group.bundle_specs[0]))
        if max(num_fitting, len(self._reading) - len(silent)) < self._size.least:
            raise errors.TransientError(
                f"too few nodes are left for this training, which needs {self._size}: {_in_words() or 'none'}",
                do="start nodes (docs/cluster.md), and run the same command: it goes on from the newest checkpoint",
            )
        if num_fitting >= self.num_nodes:
            for reading, place in silent.items():
                if time.monotonic() - place.started_at > _AGENT_ANSWERS_WITHIN_SECONDS:
                    del self._reading[reading]
                    ray.kill(place.agent)
                    self._start_again(place, f"no answer within {_AGENT_ANSWERS_WITHIN_SECONDS:.0f} s")


@contextmanager
def placed_gang(address: str, shared: Path, size: GangSize) -> Iterator[Gang]:
    """Yield a gang on as many nodes as there are, up to `size.most`, after a check of each node of the cluster.

    Raises:
        ClusterError: a node has other versions, or does not see `shared`; or there are fewer than `size.least` nodes.
        TransientError: other work has the nodes.
    """
    with nodes.connection(address, shared):
        has_gpus = any(node["Resources"].get("GPU") for node in nodes.living())
        bundle = {"CPU": float(size.processes)} | ({"GPU": float(size.processes)} if has_gpus else {})
        num_nodes = min(len(_fitting(bundle)), size.most)
        needed = f"{size}, each with a {'GPU and a ' if has_gpus else ''}CPU of its own"
        if num_nodes < size.least:
            raise errors.ClusterError(
                f"the cluster has too few nodes for this training, which needs {needed}: {_in_words() or 'none'}",
                do="start nodes (docs/cluster.md), or lower --nnodes or --nproc-per-node",
            )
        group = placement_group([bundle] * num_nodes, strategy="STRICT_SPREAD")
        if not group.wait(_PLACING_SECONDS):
            raise errors.TransientError(
                f"other work (`ray status`) keeps the nodes, and this training needs {needed}: {_in_words()}",
                do="run the same command when that work is done, or lower --nnodes or --nproc-per-node",
            )
        yield Gang(group, size)


def _fitting(bundle: Mapping[str, float]) -> list[str]:
    """Return the ids of the nodes that are alive and have the resources of `bundle`, free or not."""
    return [
        node["NodeID"]
        for node in nodes.living()
        if all(node["Resources"].get(name, 0) >= number for name, number in bundle.items())
    ]


def _in_words() -> str:
    """Return each node that is alive with its CPUs and GPUs."""
    told = []
    for node in nodes.living():
        cpus, gpus = (int(node["Resources"].get(name, 0)) for name in ("CPU", "GPU"))
        told.append(f"{nodes.named(node['NodeID'])}: {cpus} CPUs" + (f", {gpus} GPUs" if gpus else ""))
    return "; ".join(told)
