"""Processes that tests start: whether they end, and what they do when memory really runs out."""

import contextlib
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest


def wait_for(what: Callable[[], bool], seconds: float, every_seconds: float = 0.1) -> bool:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(every_seconds)
    return what()


def run_to_end(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, seconds: float = 300
) -> str:
    """Run a command that has to succeed; return what it said on both streams."""
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@contextlib.contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, health_url: str, seconds: float = 150
) -> Iterator[None]:
    """Run a server during the block, once it is healthy; SIGTERM then has to end it with all its children.

    Its output is in log.txt of its home.
    """
    log = Path(environment["HOME"]) / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=output, start_new_session=True
        )
        try:
            wait_for(lambda: answers(health_url) or process.poll() is not None, seconds)
            assert answers(health_url), log.read_text(encoding="utf-8", errors="replace")[-4000:]
            yield
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(url: str) -> bool:
    """Return whether a server answers with 200."""
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    return False


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start_of_long_stage(root: Path) -> None:
    """Make the toy project's first stage stay until it is ended."""
    (root / "raw.txt").write_text("long")


def stage_pids(root: Path) -> list[int]:
    """Return the pids of the long stage and of its child in a session of its own; empty before they start."""
    file = root / "pids"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


PROJECT = Path(__file__).parents[2]
MORE_BYTES = 64 << 20
# A C++ library that is refused a smaller block may end the process instead of raising an error.
SMALL_BYTES = 128 << 10


def with_little_and_with_enough(train: Callable[[], list[float]]) -> None:
    """Write the losses with little and with enough memory to standard output, and the log messages.

    Everything that `train` needs besides memory for a batch must exist already: imports, threads.
    """
    told: list[str] = []
    logging.getLogger("clozeline").addHandler(_Noting(told))
    with at_most_more(MORE_BYTES):
        little = train()
    told_with_little = list(told)
    enough = train()
    json.dump({"little": little, "enough": enough, "told": told_with_little, "told in all": told}, sys.stdout)


class _Noting(logging.Handler):
    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        self._told.append(record.getMessage())


@contextlib.contextmanager
def at_most_more(num_bytes: int) -> Iterator[None]:
    """Refuse requests beyond `num_bytes` more of address space; small ones are still served from gaps in the heap."""
    between = [bytearray(SMALL_BYTES - 1024) for _ in range(128)]
    del between[::2]
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_had_bytes() + num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextlib.contextmanager
def little_disk(num_bytes: int = 100_000) -> Iterator[None]:
    """Let no file of this process grow beyond `num_bytes`: as much as a disk that is almost full takes of one file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _had_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmSize:"))


def run_alone(module: str, *arguments: object) -> dict[str, Any]:
    """Run `python -m MODULE …` in a process of its own and return its JSON output."""
    if sys.platform != "linux":
        pytest.skip("only Linux enforces RLIMIT_AS, which limits the memory of the process")
    environment = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": str(SMALL_BYTES),  # freed memory goes back to the system
        "MALLOC_ARENA_MAX": "1",  # a thread would take 64 MiB of addresses
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", module, *map(str, arguments)]
    ended = subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found
