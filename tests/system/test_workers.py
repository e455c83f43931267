"""Workers return results in order, end with their parent, and pass errors on; ranks on several machines."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import distributed

from clozeline.system.errors import ArtifactError, TransientError
from clozeline.system.group import Group, agreed, check_shared, check_versions
from clozeline.system.machine import available_cores
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


def test_the_first_process_of_another_machine_is_not_the_first_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its local rank is 0 there too, and its cores are shared with the processes of its own machine alone."""
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    described = {"RANK": "4", "LOCAL_RANK": "0", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2"}
    group = Group.join(described)
    assert not group.is_first
    assert (group.rank, group.world_size) == (4, 6)
    assert group.num_threads == max(available_cores() // 2, 1)


@dataclass(frozen=True)
class TwoMachines(Group):
    """The first of two processes; the second one is on another machine, where its own value is `other`."""

    other: Callable[[Any], Any] = str

    def of_each(self, value: Any) -> list[Any]:
        return [value, ("far (process 1)", self.other(value[1]))]

    def of_the_first(self, value: Any) -> Any:
        return value

    def wait(self) -> None:
        pass


def two(other: Callable[[Any], Any]) -> Group:
    return TwoMachines(0, 2, torch.device("cpu"), other=other)


def test_other_programs_on_a_machine_are_refused_by_its_name() -> None:
    check_versions(two(lambda own: own))
    with pytest.raises(ArtifactError, match=r"(?s)Python 3\.9\.1, .*: far \(process 1\)") as caught:
        check_versions(two(lambda own: "Python 3.9.1, " + own.partition(", ")[2]))
    assert "clozeline" in caught.value.problem


def test_other_inputs_on_a_machine_are_refused_by_its_name(tmp_path: Path) -> None:
    assert agreed(two(lambda own: own), tmp_path, "ab") == "ab"
    with pytest.raises(ArtifactError, match=r"fingerprint ab: .*\(process 0\); fingerprint cd: far \(process 1\)"):
        agreed(two(lambda own: "fingerprint cd"), tmp_path, "ab")


def test_a_folder_that_a_machine_does_not_see_is_refused_by_its_name(tmp_path: Path) -> None:
    work = tmp_path / "work"
    seen: list[list[Path]] = []
    check_shared(two(lambda own: seen.append([*work.iterdir()]) or own), work)
    assert [len(files) for files in seen] == [1], "there was a file to see"
    with pytest.raises(ArtifactError, match=r"not shared(?s:.*)far \(process 1\)"):
        check_shared(two(lambda own: False), work)
    assert list(work.iterdir()) == []
