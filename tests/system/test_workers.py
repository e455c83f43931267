"""Workers return results in order, end with their parent, and pass errors on."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from clozeline.system.errors import TransientError
from clozeline.system.workers import worker_processes

SLEEPERS = """
import os, time
from clozeline.system.workers import worker_processes

if __name__ == "__main__":
    with worker_processes(2) as workers:
        for _ in workers.map(time.sleep, [0.1, 0.1, 600, 600]):
            print("ready", flush=True)
"""
SCRIPT = """
from clozeline.system.workers import worker_processes

print("once", __file__)
with worker_processes(2) as workers:
    print(*workers.map(str.upper, "abc"), __file__)
"""


def slow_square(number: int) -> int:
    time.sleep(0.02 if number % 2 else 0.0)
    return number * number


def kills_itself(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fails_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_come_in_the_order_of_the_items_and_an_error_is_raised_in_the_caller(num_workers: int) -> None:
    """Released workers end before the block does."""
    with worker_processes(num_workers) as workers:
        assert list(workers.map(slow_square, range(30))) == [number * number for number in range(30)]
        with pytest.raises(ValueError, match="three"):
            list(workers.map(fails_at_three, range(100)))
        children = [psutil.Process(child.pid) for child in multiprocessing.active_children()]
        workers.release()
        _gone, alive = psutil.wait_procs(children, timeout=60)
        assert not alive


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"once {script}", f"A B C {script}"]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_items_are_consumed_only_as_fast_as_results_are_taken(num_workers: int) -> None:
    drawn: list[int] = []
    numbers = (drawn.append(number) or number for number in range(1000))
    with worker_processes(num_workers) as workers:
        results = workers.map(slow_square, numbers)
        for taken in range(1, 6):
            next(results)
            assert len(drawn) <= taken + 2 * num_workers


def test_a_killed_worker_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clozeline.system.workers.out_of_memory_kills", iter([0, 1]).__next__)
    with worker_processes(2) as workers, pytest.raises(TransientError, match="ended before its task") as caught:
        list(workers.map(kills_itself, range(10)))
    assert "memory ran out" in caught.value.problem


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "sleepers.py"
    script.write_text(SLEEPERS)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        children = psutil.Process(parent.pid).children(recursive=True)
        assert len(children) >= 2
        os.kill(parent.pid, signal.SIGKILL)
    _gone, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
