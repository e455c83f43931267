"""Memory that this process may use in total, and may still allocate, which a container can limit; and kills for lack
of it."""

import os
from pathlib import Path

from clozeline.machine.cores import CGROUPS, MEMBERSHIP, groups_of

_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of control groups, versions 2 and 1: limit, usage, and the droppable page cache counted in the usage."""
_MEMINFO = Path("/proc/meminfo")
_VMSTAT = Path("/proc/vmstat")


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
