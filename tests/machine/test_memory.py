"""Memory that a container gets, and has left."""

import os
from pathlib import Path

import pytest

from clozeline.system.machine import available_bytes, free_memory_bytes, out_of_memory_kills

MIB, GIB = 2**20, 2**30


def write(file: Path, text: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n", encoding="utf-8")


def left(machine: Path, membership: str) -> int | None:
    write(machine / "self", membership)
    return free_memory_bytes(machine, machine / "self", machine / "meminfo")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder like /sys/fs/cgroup, on a machine with 8 GiB, all of them left."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 8 * GIB // 4096}.__getitem__)
    write(tmp_path / "meminfo", f"MemTotal: {2**24} kB\nMemFree: 5 kB\nMemAvailable: {2**23} kB")
    return tmp_path


def group(folder: Path, limit: object, used: int, files: int) -> None:
    write(folder / "memory.max", limit)
    write(folder / "memory.current", used)
    write(folder / "memory.stat", f"anon 1\ninactive_file {files}\nactive_file 7")


def test_without_a_limit_free_memory_is_that_of_the_machine(machine: Path) -> None:
    group(machine / "pod", "max", 5 * MIB, 0)
    assert left(machine, "0::/pod") == 2**33


def test_the_limit_of_the_group_applies_and_file_cache_counts_as_free(machine: Path) -> None:
    group(machine / "pod", 100 * MIB, 90 * MIB, 30 * MIB)
    assert left(machine, "0::/pod") == 40 * MIB


def test_a_parent_group_may_have_less_left(machine: Path) -> None:
    group(machine / "pod", 50 * MIB, 20 * MIB, 0)
    group(machine / "pod" / "one", "max", 20 * MIB, 0)
    assert left(machine, "0::/pod/one") == 30 * MIB


def test_a_group_of_cgroup_v1_has_its_memory_left(machine: Path) -> None:
    box = machine / "memory" / "box"
    write(box / "memory.limit_in_bytes", 100 * MIB)
    write(box / "memory.usage_in_bytes", 80 * MIB)
    write(box / "memory.stat", f"inactive_file 3\ntotal_inactive_file {10 * MIB}")
    assert left(machine, "9:name=systemd:/\n4:memory:/box\n1:cpu:/") == 30 * MIB


def test_without_system_figures_the_free_memory_is_unknown(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path, tmp_path / "nothing", tmp_path / "nothing") is None


def test_free_memory_of_this_machine_is_positive() -> None:
    assert (free_memory_bytes() or 0) > MIB


def available(machine: Path, membership: str) -> int:
    write(machine / "self", membership)
    return available_bytes(machine, machine / "self")


@pytest.mark.parametrize(("limit", "expected"), [("max", 8 * GIB), (str(2 * GIB), 2 * GIB), (str(64 * GIB), 8 * GIB)])
def test_the_limit_of_the_control_group_applies(machine: Path, limit: str, expected: int) -> None:
    write(machine / "memory.max", limit)
    assert available(machine, "0::/") == expected


def test_the_limit_of_a_parent_group_applies(machine: Path) -> None:
    write(machine / "pods" / "memory.max", 3 * GIB)
    write(machine / "pods" / "one" / "memory.max", "max")
    assert available(machine, "0::/pods/one") == 3 * GIB


def test_the_limit_of_cgroup_v1_applies(machine: Path) -> None:
    write(machine / "memory" / "box" / "memory.limit_in_bytes", GIB)
    assert available(machine, "4:cpu,cpuacct:/other\n3:memory:/box") == GIB
    write(machine / "memory" / "box" / "memory.limit_in_bytes", "9223372036854771712")
    assert available(machine, "3:memory:/box") == 8 * GIB


def test_without_control_groups_the_memory_of_the_machine_applies(machine: Path) -> None:
    assert available_bytes(machine, machine / "nothing") == 8 * GIB


def test_out_of_memory_kills_are_read_from_vmstat(tmp_path: Path) -> None:
    assert out_of_memory_kills(tmp_path / "vmstat") is None
    write(tmp_path / "vmstat", "nr_free_pages 7\noom_kill 3")
    assert out_of_memory_kills(tmp_path / "vmstat") == 3
