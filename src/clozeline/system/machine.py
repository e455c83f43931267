"""The machine: cores and memory that this process may use, kills for lack of memory, the processor, and the heap.

A container can limit cores and memory. Timings are valid for equal processors only, so the name and the vector
instructions of the processor go with them.
"""

import atexit
import ctypes
import gc
import os
import platform
from pathlib import Path

from clozeline.system.errors import ParamsError

# Environment variable with the most cores that a process uses; machines with different numbers then do the same.
MOST = "CLOZELINE_CORES"
CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

# Files of control groups, versions 2 and 1: limit, usage, and the droppable page cache counted in the usage.
_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_MEMINFO = Path("/proc/meminfo")
_VMSTAT = Path("/proc/vmstat")

_VECTORS = ("avx512_bf16", "avx512_vnni", "avx_vnni", "avx512f", "avx2", "asimddp", "asimd")

# M_ARENA_MAX of glibc's malloc.h.
_M_ARENA_MAX = -8

# Python's own limit is 700. A limit of 100,000 saves no more.
_MOST_NEW_OBJECTS = 10_000


def available_cores(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the number of cores that this process may use: those of the machine, but not more than `MOST` says.

    Raises:
        ParamsError: `MOST` is not a number of cores.
    """
    offered, most = _offered_cores(cgroups, membership), os.environ.get(MOST, "")
    if not most:
        return offered
    if not most.isdecimal() or int(most) == 0:
        raise ParamsError(
            f"the environment variable {MOST} must be an integer of at least 1, not {most}",
            do=f"set {MOST} to the most cores that a stage may use, or unset it",
        )
    return min(offered, int(most))


def are_limited() -> bool:
    """Whether `MOST` is less than what the machine offers."""
    return available_cores() < _offered_cores(CGROUPS, MEMBERSHIP)


def _offered_cores(cgroups: Path, membership: Path) -> int:
    """Return the smallest of the CPU affinity and the quota of the control groups, at least 1.

    A quota is rounded down, because the kernel throttles every thread of a group that exceeds it.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in groups_of("cpu", cgroups, membership) if (quota := _quota(folder)) is not None]
    return max(1, int(min([float(affinity), *quotas])))


def groups_of(controller: str, cgroups: Path, membership: Path) -> list[Path]:
    """Return the control groups of this process and their parents. Each may have a limit; the smallest applies.

    Version 1: the groups of `controller`. Version 2: all groups.
    """
    found: list[Path] = []
    for line in membership.read_text(encoding="utf-8").splitlines() if membership.is_file() else []:
        _, controllers, path = line.split(":", 2)
        root = cgroups / controller if controller in controllers.split(",") else cgroups
        folder = root / path.strip("/")
        found += [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
    return found


def _quota(folder: Path) -> float | None:
    """Quota in cores of the control group at `folder` (version 2 or 1); None if it has none."""
    if (folder / "cpu.max").is_file():
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
    elif (folder / "cpu.cfs_quota_us").is_file():
        quota = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8").strip()
        period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8").strip()
    else:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def available_bytes(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the smallest of the machine's memory and the limits of this process's control groups."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files = (folder / limit for folder in groups_of("memory", cgroups, membership) for limit, *_ in _VERSIONS)
    limits = (file.read_text(encoding="utf-8").strip() for file in files if file.is_file())
    return min([machine, *(int(limit) for limit in limits if limit != "max")])


def free_memory_bytes(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP, meminfo: Path = _MEMINFO) -> int | None:
    """Return the smallest amount left in the machine and in each control group; None if the system does not report
    it."""
    folders = groups_of("memory", cgroups, membership)
    left = [bytes_left for folder in folders if (bytes_left := _left(folder)) is not None]
    if meminfo.is_file():
        left.append(1024 * (_figure(meminfo, "MemAvailable:") or 0))
    return min(left, default=None)


def out_of_memory_kills(vmstat: Path = _VMSTAT) -> int | None:
    """Return how many processes the kernel has killed on this machine because memory ran out, containers included.

    None where the system does not count them; Linux counts since 4.13.
    """
    return _figure(vmstat, "oom_kill")


def _left(folder: Path) -> int | None:
    """Bytes left in the control group at `folder`; None if it has no limit."""
    for limit, used, dropped in _VERSIONS:
        if (folder / limit).is_file():
            limit_bytes = (folder / limit).read_text(encoding="utf-8").strip()
            if limit_bytes == "max":
                return None
            used_bytes = int((folder / used).read_text(encoding="utf-8"))
            return int(limit_bytes) - used_bytes + (_figure(folder / "memory.stat", dropped) or 0)
    return None


def _figure(file: Path, name: str) -> int | None:
    """Number after `name` in a file of `name number` lines; None if the file or the name is missing."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), None)


def processor(facts: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name and the vector and INT8 instruction sets that the kernel reports."""
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.is_file() else []
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(values.get("flags", values.get("Features", "")).split())
    vectors = [name for name in _VECTORS if name in flags]
    name = values.get("model name", platform.processor() or platform.machine())
    return ", ".join([name, *vectors])


def give_back_freed() -> None:
    """Trim the heap. glibc keeps freed memory below the top of the heap; other C libraries have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def share_one_heap() -> None:
    """Let new threads share one heap (arena), so that memory freed by one thread can be reused by another."""
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is not None:
        choose(_M_ARENA_MAX, 1)


def collect_rarely() -> None:
    """Search for reference cycles after 10,000 new objects, and not while the process ends.

    Nearly all objects of a command belong to the modules that it imports, and live until it ends. Searching through
    them took a quarter to a third of the processor time of a start: 1.6 of 4.5 s for a flow, 1.8 of 5.7 s for an
    export.
    """
    gc.set_threshold(_MOST_NEW_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
