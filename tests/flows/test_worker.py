"""A worker ends within a bounded time after SIGTERM, and none of the processes of its runs outlives it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.make.processes import is_alive, wait_for

Start = Callable[[str], tuple[subprocess.Popen[bytes], list[int]]]
PATIENCE_SECONDS = 0.3
# A worker whose server accepts connections but never answers, and a run of it in a session of its own.
WORKER = """
import os, signal, subprocess, sys, time
if "{ends}" == "never":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
run = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open("pids.new", "w") as file:
    file.write(f"{{os.getpid()}} {{run.pid}}")
os.rename("pids.new", "pids")
if "{ends}" == "at once":
    sys.exit(3)
time.sleep(600)
"""
START = f"""
import sys
from clozeline.flows import worker
worker._PATIENCE_SECONDS = {PATIENCE_SECONDS}
sys.exit(worker.work([sys.executable, "-c", sys.argv[1]]))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(when_it_ends)` starts a supervised worker of the script above; it returns the pids of worker and run."""
    started = list[int]()

    def start(ends: str) -> tuple[subprocess.Popen[bytes], list[int]]:
        command = [sys.executable, "-c", START, WORKER.format(ends=ends)]
        supervisor = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
        assert wait_for((tmp_path / "pids").exists, 240)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        started.extend([supervisor.pid, *pids])
        return supervisor, pids

    yield start
    for pid in filter(is_alive, started):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("ends", "number"), [("on SIGTERM", signal.SIGINT), ("never", signal.SIGTERM)])
def test_a_signal_ends_the_worker_and_its_run_within_seconds(start: Start, ends: str, number: signal.Signals) -> None:
    supervisor, pids = start(ends)
    supervisor.send_signal(number)
    assert supervisor.wait(timeout=120) == 0  # by itself it would take 600 s
    assert not any(map(is_alive, pids))


def test_a_killed_supervisor_takes_its_worker_along(start: Start) -> None:
    supervisor, (worker, _) = start("on SIGTERM")
    supervisor.kill()
    supervisor.wait()
    assert wait_for(lambda: not is_alive(worker), 120)


def test_a_worker_that_ends_by_itself_leaves_no_run_and_passes_its_exit_code_on(start: Start) -> None:
    supervisor, pids = start("at once")
    assert supervisor.wait(timeout=120) == 3
    assert not any(map(is_alive, pids))
