"""A worker ends within a bounded time after SIGTERM, and none of the processes of its runs outlives it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.make.processes import is_alive, wait_for

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


class Started:
    """A supervised worker of the script above."""

    def __init__(self, root: Path, ends: str) -> None:
        command = [sys.executable, "-c", START, WORKER.format(ends=ends)]
        self.process = subprocess.Popen(command, cwd=root, start_new_session=True)
        assert wait_for((root / "pids").exists, 240)
        self.pids = [int(pid) for pid in (root / "pids").read_text().split()]

    def are_gone(self) -> bool:
        return not any(map(is_alive, self.pids))


@pytest.fixture
def started(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Started]:
    worker = Started(tmp_path, request.param)
    yield worker
    for pid in (worker.process.pid, *worker.pids):
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
    worker.process.wait()


@pytest.mark.parametrize(
    ("started", "number"), [("on SIGTERM", signal.SIGINT), ("never", signal.SIGTERM)], indirect=["started"]
)
def test_a_signal_ends_the_worker_and_its_run_within_seconds(started: Started, number: signal.Signals) -> None:
    started.process.send_signal(number)
    assert started.process.wait(timeout=120) == 0  # by itself it would take 600 s
    assert started.are_gone()


@pytest.mark.parametrize("started", ["on SIGTERM"], indirect=True)
def test_a_killed_supervisor_takes_its_worker_along(started: Started) -> None:
    started.process.kill()
    assert wait_for(lambda: not is_alive(started.pids[0]), 120)


@pytest.mark.parametrize("started", ["at once"], indirect=True)
def test_a_worker_that_ends_by_itself_leaves_no_run_and_passes_its_exit_code_on(started: Started) -> None:
    assert started.process.wait(timeout=120) == 3
    assert started.are_gone()
