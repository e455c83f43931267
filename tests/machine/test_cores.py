"""Number of threads and worker processes that a container gets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clozeline.system.errors import ParamsError
from clozeline.system.machine import MOST, available_cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder like /sys/fs/cgroup, on a machine where this process may run on 8 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    return tmp_path


def cores(machine: Path, membership: str) -> int:
    (machine / "self").write_text(membership, encoding="utf-8")
    return available_cores(machine, machine / "self")


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("350000 100000", 3),  # rounded down: the quota would throttle four threads
        ("50000 100000", 1),
        ("1600000 100000", 8),
    ],
)
def test_the_quota_of_the_control_group_applies(machine: Path, cpu_max: str, expected: int) -> None:
    write(machine / "cpu.max", cpu_max)
    assert cores(machine, "0::/\n") == expected


def test_the_quota_of_a_parent_group_applies(machine: Path) -> None:
    write(machine / "pods" / "cpu.max", "300000 100000")
    write(machine / "pods" / "one" / "cpu.max", "max 100000")
    assert cores(machine, "0::/pods/one\n") == 3


def test_the_quota_of_cgroup_v1_applies(machine: Path) -> None:
    write(machine / "cpu" / "box" / "cpu.cfs_quota_us", "400000\n")
    write(machine / "cpu" / "box" / "cpu.cfs_period_us", "100000\n")
    assert cores(machine, "4:cpu,cpuacct:/box\n3:memory:/box\n") == 4
    write(machine / "cpu" / "box" / "cpu.cfs_quota_us", "-1\n")
    assert cores(machine, "4:cpu,cpuacct:/box\n") == 8


def test_without_control_groups_only_affinity_limits_the_cores(machine: Path) -> None:
    assert available_cores(machine, machine / "nothing") == 8


def test_a_process_pinned_to_one_core_counts_one() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "from clozeline.system.machine import MOST, available_cores; print(available_cores())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == "1\n"


def test_a_process_uses_no_more_cores_than_it_is_told_to(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MOST, "3")
    assert cores(machine, "0::/\n") == 3
    monkeypatch.setenv(MOST, "300")
    assert cores(machine, "0::/\n") == 8


@pytest.mark.parametrize("most", ["0", "-1", "1.5", "two"])
def test_what_is_no_number_of_cores_is_refused(machine: Path, monkeypatch: pytest.MonkeyPatch, most: str) -> None:
    monkeypatch.setenv(MOST, most)
    with pytest.raises(ParamsError, match="must be an integer"):
        cores(machine, "0::/\n")
