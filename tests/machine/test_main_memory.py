"""Memory that a container gets."""

import os
from pathlib import Path

import pytest

from clozeline.machine.main_memory import available_bytes, out_of_memory_kills

GIB = 2**30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder like /sys/fs/cgroup, on a machine with 8 GiB."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 8 * GIB // 4096}.__getitem__)
    return tmp_path


def available(machine: Path, membership: str) -> int:
    (machine / "self").write_text(membership, encoding="utf-8")
    return available_bytes(machine, machine / "self")


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("limit", "expected"), [("max", 8 * GIB), (str(2 * GIB), 2 * GIB), (str(64 * GIB), 8 * GIB)])
def test_the_limit_of_the_control_group_applies(machine: Path, limit: str, expected: int) -> None:
    write(machine / "memory.max", f"{limit}\n")
    assert available(machine, "0::/\n") == expected


def test_the_limit_of_a_parent_group_applies(machine: Path) -> None:
    write(machine / "pods" / "memory.max", f"{3 * GIB}\n")
    write(machine / "pods" / "one" / "memory.max", "max\n")
    assert available(machine, "0::/pods/one\n") == 3 * GIB


def test_the_limit_of_cgroup_v1_applies(machine: Path) -> None:
    write(machine / "memory" / "box" / "memory.limit_in_bytes", f"{GIB}\n")
    assert available(machine, "4:cpu,cpuacct:/other\n3:memory:/box\n") == GIB
    write(machine / "memory" / "box" / "memory.limit_in_bytes", "9223372036854771712\n")
    assert available(machine, "3:memory:/box\n") == 8 * GIB


def test_without_control_groups_the_memory_of_the_machine_applies(machine: Path) -> None:
    assert available_bytes(machine, machine / "nothing") == 8 * GIB


def test_out_of_memory_kills_are_read_from_vmstat(tmp_path: Path) -> None:
    assert out_of_memory_kills(tmp_path / "vmstat") is None
    write(tmp_path / "vmstat", "nr_free_pages 7\noom_kill 3\n")
    assert out_of_memory_kills(tmp_path / "vmstat") == 3
