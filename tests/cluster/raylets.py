"""Raylets on this machine: the nodes of a small cluster, each ended with its block."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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
    nodes: tuple[psutil.Process, psutil.Process]

    def node_of(self, pid: int) -> psutil.Process:
        """Return the node that runs a process."""
        (found,) = (node for node in self.nodes if pid in {child.pid for child in node.children(recursive=True)})
        return found


@contextmanager
def cluster_of_two(log: Path, code: Path = PROJECT, variables: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Start a head and another node, and end them with the block. Their output goes to `log`, and they run `code`."""
    port, environment = free_port(), {**settings(), "PYTHONPATH": str(code), **(variables or {})}
    with ExitStack() as opened:
        told = opened.enter_context(log.open("w"))
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="ray-"))  # short enough for names of sockets
        head = ("--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false")
        nodes = (
            opened.enter_context(raylet(told, environment, *head)),
            opened.enter_context(raylet(told, environment, f"--address=127.0.0.1:{port}")),
        )
        address = f"127.0.0.1:{port}"
        yield Cluster(address, {**environment, "CLOZELINE_CLUSTER": f"ray://{address}"}, nodes)


def kill_raylet(node: psutil.Process) -> None:
    """Kill a node as a machine that loses power would end it."""
    (found,) = (process for process in node.children(recursive=True) if process.name() == "raylet")
    found.kill()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def full_at_two(number: int) -> int:
    """Return the number; 2 finds the disk full."""
    if number == 2:
        raise OSError(28, os.strerror(28))
    return number


def settings() -> dict[str, str]:
    """Return the environment of a cluster with a token of its own. Raylets wait for their agents on busy machines."""
    return {
        "PYTHONPATH": str(PROJECT),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_agent_register_timeout_ms": "120000",
        "RAY_worker_niceness": "0",  # 15 by default, which starves workers on a busy machine
    }


@contextmanager
def raylet(log: IO[str], environment: Mapping[str, str], *arguments: str) -> Iterator[psutil.Process]:
    """Start a node, and yield the process of `ray start` when the node is up; end it and its children afterwards.

    A start is repeated: Ray gives up after 30 s, which a busy machine may need.
    """
    command = [str(Path(sys.executable).with_name("ray")), "start", *arguments, *_SMALL]
    told = {**os.environ, **environment}
    for _ in range(_MOST_STARTS):
        started = psutil.Popen(command, env=told, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            if any("Ray runtime started" in line for line in started.stdout):
                yield started
                return
        finally:
            _end(started)
    raise AssertionError("the node did not start")


def _end(started: psutil.Popen) -> None:
    processes = [*started.children(recursive=True), started] if started.is_running() else []
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=60)
    started.stdout.close()
    started.wait()
