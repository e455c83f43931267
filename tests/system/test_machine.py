"""What this machine, or a container on it, gives to a process: cores, memory, instructions; and how it is used; the
tools that a command starts get the settings of the project, and what the environment says wins.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from clozeline.system.errors import ParamsError
from clozeline.system.machine import (
    MOST,
    available_bytes,
    available_cores,
    free_memory_bytes,
    out_of_memory_kills,
    processor,
)
from clozeline.system.workspace import Workspace, set_defaults

MIB, GIB = 2**20, 2**30


def put(files: Mapping[Path, object]) -> None:
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n", encoding="utf-8")


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder like /sys/fs/cgroup; this process may run on 8 cores, and the machine has 8 GiB, all of them left."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 8 * GIB // 4096}.__getitem__)
    put({tmp_path / "meminfo": f"MemTotal: {2**24} kB\nMemFree: 5 kB\nMemAvailable: {2**23} kB"})
    return tmp_path


def limited(cgroups: Path, membership: str, files: Mapping[str, object]) -> tuple[Path, Path]:
    """Write the files of control groups; return the folder of the groups, and the file that names ours."""
    ours = {cgroups / "self": membership} if membership else {}
    put({cgroups / name: content for name, content in files.items()} | ours)
    return cgroups, cgroups / "self"


V1_CPU = {"cpu/box/cpu.cfs_quota_us": 400000, "cpu/box/cpu.cfs_period_us": 100000}


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, (8, 8 * GIB)),
        ("0::/", {"cpu.max": "200000 100000", "memory.max": 2 * GIB}, (2, 2 * GIB)),
        ("0::/", {"cpu.max": "350000 100000"}, (3, 8 * GIB)),  # rounded down: the quota would throttle four threads
        ("0::/", {"cpu.max": "50000 100000"}, (1, 8 * GIB)),
        ("0::/", {"cpu.max": "1600000 100000", "memory.max": 64 * GIB}, (8, 8 * GIB)),
        ("0::/pods/one", {"pods/cpu.max": "300000 100000", "pods/one/cpu.max": "max 100000"}, (3, 8 * GIB)),
        ("0::/pods/one", {"pods/memory.max": 3 * GIB, "pods/one/memory.max": "max"}, (8, 3 * GIB)),
        ("4:cpu,cpuacct:/box\n3:memory:/other", V1_CPU, (4, 8 * GIB)),
        ("4:cpu,cpuacct:/box", V1_CPU | {"cpu/box/cpu.cfs_quota_us": -1}, (8, 8 * GIB)),
        ("4:cpu:/other\n3:memory:/box", {"memory/box/memory.limit_in_bytes": GIB}, (8, GIB)),
        ("3:memory:/box", {"memory/box/memory.limit_in_bytes": "9223372036854771712"}, (8, 8 * GIB)),
        ("", {}, (8, 8 * GIB)),
    ],
)
def test_the_quota_of_the_control_group_applies(cgroups: Path, membership, files, expected) -> None:
    """Cores and bytes of memory. The group may be a parent, or of cgroup v1; without any only affinity limits the
    cores, and only the machine the memory.
    """
    where = limited(cgroups, membership, files)
    assert (available_cores(*where), available_bytes(*where)) == expected


PINNED = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from clozeline.system.machine import available_cores
print(available_cores())
"""


def test_a_process_pinned_to_one_core_counts_one() -> None:
    assert subprocess.run([sys.executable, "-c", PINNED], capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.parametrize(
    ("most", "expected"), [("3", 3), ("300", 8), *((it, None) for it in ("0", "-1", "1.5", "two"))]
)
def test_a_process_uses_no_more_cores_than_it_is_told_to(cgroups, monkeypatch, most: str, expected: int | None) -> None:
    """What is no number of cores is refused."""
    monkeypatch.setenv(MOST, most)
    if expected is None:
        with pytest.raises(ParamsError, match=MOST):
            available_cores()
    else:
        assert available_cores(*limited(cgroups, "0::/", {})) == expected


def group(place: str, limit: object, used: int, files: int) -> dict[str, object]:
    stat = f"anon 1\ninactive_file {files}\nactive_file 7"
    return {f"{place}/memory.max": limit, f"{place}/memory.current": used, f"{place}/memory.stat": stat}


V1_MEMORY = {
    "memory/box/memory.limit_in_bytes": 100 * MIB,
    "memory/box/memory.usage_in_bytes": 80 * MIB,
    "memory/box/memory.stat": f"inactive_file 3\ntotal_inactive_file {10 * MIB}",
}


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/pod", group("pod", "max", 5 * MIB, 0), 8 * GIB),  # of the machine
        ("0::/pod", group("pod", 100 * MIB, 90 * MIB, 30 * MIB), 40 * MIB),  # file cache is free
        ("0::/pod/one", group("pod", 50 * MIB, 20 * MIB, 0) | group("pod/one", "max", 20 * MIB, 0), 30 * MIB),
        ("9:name=systemd:/\n4:memory:/box\n1:cpu:/", V1_MEMORY, 30 * MIB),
    ],
)
def test_free_memory_is_what_the_groups_have_left(cgroups: Path, membership, files, expected) -> None:
    assert free_memory_bytes(*limited(cgroups, membership, files), cgroups / "meminfo") == expected


def test_without_system_figures_the_free_memory_is_unknown(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path, tmp_path / "nothing", tmp_path / "nothing") is None
    assert (free_memory_bytes() or 0) > MIB, "of this machine"


def test_out_of_memory_kills_are_read_from_vmstat(tmp_path: Path) -> None:
    assert out_of_memory_kills(tmp_path / "vmstat") is None
    put({tmp_path / "vmstat": "nr_free_pages 7\noom_kill 3"})
    assert out_of_memory_kills(tmp_path / "vmstat") == 3


@pytest.fixture(autouse=True)
def environment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*Workspace(Path()).defaults(), "http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "to be put back")
        monkeypatch.delenv(name)


def test_a_fresh_clone_gets_a_prefect_home_and_quiet_tools_but_the_environment_wins(tmp_path, monkeypatch) -> None:
    set_defaults(Workspace(tmp_path))
    assert os.environ["PREFECT_HOME"] == str(tmp_path / "work" / "prefect")
    assert Path(os.environ["PREFECT_HOME"]).is_dir()
    assert os.environ["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/work/mlflow/mlflow.db"
    assert os.environ["DO_NOT_TRACK"] == "true"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    set_defaults(Workspace(tmp_path))
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"


def test_what_a_run_leaves_is_closed_to_other_users(tmp_path: Path) -> None:
    (tmp_path / "open" / "work").mkdir(mode=0o755, parents=True)
    for root in (tmp_path / "new", tmp_path / "open"):
        set_defaults(Workspace(root))
        assert (root / "work").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_existing_no_proxy_entries_are_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "corp.example, localhost")
    for _ in range(2):
        set_defaults(Workspace(tmp_path))
        assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == "corp.example,localhost,127.0.0.1,::1"


def test_a_processor_is_described_by_its_name_and_instructions(tmp_path: Path) -> None:
    for line in ("flags\t\t: sse avx2 avx512f avx512_vnni", "Features\t: sse avx2 avx512f avx512_vnni"):
        put({tmp_path / "cpuinfo": f"processor\t: 0\nmodel name\t: EPYC\n{line}"})
        assert processor(tmp_path / "cpuinfo") == "EPYC, avx512_vnni, avx512f, avx2"
    assert processor(tmp_path / "nothing"), "the name of the machine"


HEAP = """
import ctypes, threading
from pathlib import Path
from clozeline.system.machine import give_back_freed, share_one_heap

def own_bytes():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

share_one_heap()
blocks = [b"." * 20_000 for _ in range(2_000)]
full, kept = own_bytes(), blocks[-1]
blocks.clear()
give_back_freed()
print(full - own_bytes())
libc, barrier = ctypes.CDLL(None), threading.Barrier(6)
threads = [threading.Thread(target=lambda: (libc.malloc(1000), barrier.wait())) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_stats()
"""


def test_freed_memory_goes_back_to_the_system_and_later_threads_get_no_separate_heaps() -> None:
    done = subprocess.run([sys.executable, "-c", HEAP], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 30_000_000
    assert done.stderr.count("Arena ") <= 2
