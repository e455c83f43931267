"""Number of threads and worker processes that a container gets."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from clozeline.system.arrays import system_allocator
from clozeline.system.errors import ParamsError
from clozeline.system.machine import (
    MOST,
    available_bytes,
    available_cores,
    free_memory_bytes,
    out_of_memory_kills,
    processor,
)


def test_the_system_allocator_is_used_only_within_the_block() -> None:
    before = pa.default_memory_pool().backend_name
    with system_allocator():
        assert pa.default_memory_pool().backend_name == "system"
    assert pa.default_memory_pool().backend_name == before


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


COMMAND = """
import atexit, gc, sys
from clozeline.cli import main
atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count()))
sys.argv = ["clozeline", "--version"]
main()
"""


def test_a_command_searches_for_cycles_rarely_and_for_none_when_it_ends() -> None:
    told = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True).stdout
    limit, num_frozen = map(int, told.split("\n")[1].split())
    assert limit == 10_000
    assert num_frozen > 10_000


BLOCKS = """
import sys
from pathlib import Path
from clozeline.system.machine import give_back_freed

def own_bytes():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

blocks = [b"." * 20_000 for _ in range(2_000)]
full = own_bytes()
kept = blocks[-1]
blocks.clear()
if "trimmed" in sys.argv:
    give_back_freed()
print(full - own_bytes())
"""
"""Runs in a process of its own: in a test worker, other tests' threads allocate memory in between."""


def num_freed_bytes(*arguments: str) -> int:
    command = [sys.executable, "-c", BLOCKS, *arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_freed_memory_between_used_blocks_is_returned_to_the_system() -> None:
    assert num_freed_bytes() < 10_000_000 < 30_000_000 < num_freed_bytes("trimmed")


HEAPS = """
import ctypes, sys, threading
from clozeline.system.machine import share_one_heap
if "shared" in sys.argv:
    share_one_heap()
libc, barrier = ctypes.CDLL(None), threading.Barrier(6)
threads = [threading.Thread(target=lambda: (libc.malloc(1000), barrier.wait())) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_stats()
"""


def num_heaps(*arguments: str) -> int:
    command = [sys.executable, "-c", HEAPS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr.count("Arena ")


def test_later_threads_get_no_separate_heaps() -> None:
    assert num_heaps("shared") <= 2 < num_heaps()


MIB, GIB = 2**20, 2**30


def put(file: Path, text: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n", encoding="utf-8")


def left(cgroups: Path, membership: str) -> int | None:
    put(cgroups / "self", membership)
    return free_memory_bytes(cgroups, cgroups / "self", cgroups / "meminfo")


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder like /sys/fs/cgroup, on a machine with 8 GiB, all of them left."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 8 * GIB // 4096}.__getitem__)
    put(tmp_path / "meminfo", f"MemTotal: {2**24} kB\nMemFree: 5 kB\nMemAvailable: {2**23} kB")
    return tmp_path


def group(folder: Path, limit: object, used: int, files: int) -> None:
    put(folder / "memory.max", limit)
    put(folder / "memory.current", used)
    put(folder / "memory.stat", f"anon 1\ninactive_file {files}\nactive_file 7")


def test_without_a_limit_free_memory_is_that_of_the_machine(cgroups: Path) -> None:
    group(cgroups / "pod", "max", 5 * MIB, 0)
    assert left(cgroups, "0::/pod") == 2**33


def test_the_limit_of_the_group_applies_and_file_cache_counts_as_free(cgroups: Path) -> None:
    group(cgroups / "pod", 100 * MIB, 90 * MIB, 30 * MIB)
    assert left(cgroups, "0::/pod") == 40 * MIB


def test_a_parent_group_may_have_less_left(cgroups: Path) -> None:
    group(cgroups / "pod", 50 * MIB, 20 * MIB, 0)
    group(cgroups / "pod" / "one", "max", 20 * MIB, 0)
    assert left(cgroups, "0::/pod/one") == 30 * MIB


def test_a_group_of_cgroup_v1_has_its_memory_left(cgroups: Path) -> None:
    box = cgroups / "memory" / "box"
    put(box / "memory.limit_in_bytes", 100 * MIB)
    put(box / "memory.usage_in_bytes", 80 * MIB)
    put(box / "memory.stat", f"inactive_file 3\ntotal_inactive_file {10 * MIB}")
    assert left(cgroups, "9:name=systemd:/\n4:memory:/box\n1:cpu:/") == 30 * MIB


def test_without_system_figures_the_free_memory_is_unknown(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path, tmp_path / "nothing", tmp_path / "nothing") is None


def test_free_memory_of_this_machine_is_positive() -> None:
    assert (free_memory_bytes() or 0) > MIB


def available(cgroups: Path, membership: str) -> int:
    put(cgroups / "self", membership)
    return available_bytes(cgroups, cgroups / "self")


@pytest.mark.parametrize(("limit", "expected"), [("max", 8 * GIB), (str(2 * GIB), 2 * GIB), (str(64 * GIB), 8 * GIB)])
def test_the_limit_of_the_control_group_applies(cgroups: Path, limit: str, expected: int) -> None:
    put(cgroups / "memory.max", limit)
    assert available(cgroups, "0::/") == expected


def test_the_limit_of_a_parent_group_applies(cgroups: Path) -> None:
    put(cgroups / "pods" / "memory.max", 3 * GIB)
    put(cgroups / "pods" / "one" / "memory.max", "max")
    assert available(cgroups, "0::/pods/one") == 3 * GIB


def test_the_limit_of_cgroup_v1_applies(cgroups: Path) -> None:
    put(cgroups / "memory" / "box" / "memory.limit_in_bytes", GIB)
    assert available(cgroups, "4:cpu,cpuacct:/other\n3:memory:/box") == GIB
    put(cgroups / "memory" / "box" / "memory.limit_in_bytes", "9223372036854771712")
    assert available(cgroups, "3:memory:/box") == 8 * GIB


def test_without_control_groups_the_memory_of_the_machine_applies(cgroups: Path) -> None:
    assert available_bytes(cgroups, cgroups / "nothing") == 8 * GIB


def test_out_of_memory_kills_are_read_from_vmstat(tmp_path: Path) -> None:
    assert out_of_memory_kills(tmp_path / "vmstat") is None
    put(tmp_path / "vmstat", "nr_free_pages 7\noom_kill 3")
    assert out_of_memory_kills(tmp_path / "vmstat") == 3


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("flags\t\t: sse avx2 avx512f avx512_vnni", "EPYC, avx512_vnni, avx512f, avx2"),
        ("flags\t\t: avx2 avx_vnni", "EPYC, avx_vnni, avx2"),
        ("Features\t: fp asimd asimddp", "EPYC, asimddp, asimd"),
        ("flags\t\t: sse", "EPYC"),
    ],
)
def test_a_processor_is_described_by_its_name_and_instructions(tmp_path: Path, line: str, told: str) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text(f"processor\t: 0\nmodel name\t: EPYC\n{line}\n", encoding="utf-8")
    assert processor(facts) == told


def test_the_processor_falls_back_to_the_machine_name(tmp_path: Path) -> None:
    assert processor(tmp_path / "nothing")
