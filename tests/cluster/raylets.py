"""Raylets on this machine: the nodes of a small cluster, each ended with its block."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import psutil

from tests.conftest import PROJECT

_SMALL = ("--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats", "--block")
_MOST_STARTS = 4


@dataclass(frozen=True)
class Cluster:
    """Two nodes with one core each."""

    address: str
    environment: Mapping[str, str]  # what a process needs to work on it
    # The processes of `ray start`: the head, without which no cluster is left, and the other node.
    nodes: list[psutil.Popen]
    start: Callable[[], psutil.Popen]  # starts a node

    def node_of(self, pid: int) -> psutil.Process:
        """Return the node that runs a process."""
        (found,) = (node for node in self.nodes if pid in {child.pid for child in node.children(recursive=True)})
        return found

    def revive(self) -> None:
        """Start another second node if that was killed."""
        if self.nodes[1].poll() is not None or not raylets_of(self.nodes[1]):
            self.nodes[1] = self.start()


@contextmanager
def cluster_of_two(log: Path, code: Path = PROJECT, variables: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Start a head and another node, and end them with the block. Their output goes to `log`, and they run `code`."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    environment = {
        "PYTHONPATH": str(code),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_agent_register_timeout_ms": "120000",  # for busy machines
        "RAY_worker_niceness": "0",  # 15 by default, which starves workers on a busy machine
        **(variables or {}),
    }
    with ExitStack() as opened:
        start = partial(_started, opened, opened.enter_context(log.open("w")), environment)
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="ray-"))  # short enough for names of sockets
        port = address.rpartition(":")[2]
        head = start("--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false")
        other = partial(start, f"--address={address}")
        told = {**environment, "CLOZELINE_CLUSTER": f"ray://{address}"}
        yield Cluster(address, told, [head, other()], other)


def kill_raylet(node: psutil.Process) -> None:
    """Kill a node as a machine that loses power would end it."""
    (found,) = raylets_of(node)
    found.kill()


def raylets_of(node: psutil.Process) -> list[psutil.Process]:
    return [process for process in node.children(recursive=True) if process.name() == "raylet"]


def full_at_two(number: int) -> int:
    """Return the number; 2 finds the disk full."""
    if number == 2:
        raise OSError(28, os.strerror(28))
    return number


def _started(opened: ExitStack, log: IO[str], environment: Mapping[str, str], *arguments: str) -> psutil.Popen:
    """Start a node, and return the process of `ray start` when the node is up; it ends with the block.

    A start is repeated: Ray gives up after 30 s, which a busy machine may need.
    """
    command = [str(Path(sys.executable).with_name("ray")), "start", *arguments, *_SMALL]
    told = {**os.environ, **environment}
    for _ in range(_MOST_STARTS):
        started = psutil.Popen(command, env=told, stdout=subprocess.PIPE, stderr=log, text=True)
        opened.callback(_end, started)
        if any("Ray runtime started" in line for line in started.stdout):
            return started
        _end(started)
    raise AssertionError("the node did not start")


def _end(started: psutil.Popen) -> None:
    processes = [*started.children(recursive=True), started] if started.is_running() else []
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=60)
    started.stdout.close()
    started.wait()
