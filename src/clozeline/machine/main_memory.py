"""Total memory this process may use, which a container can limit; and whether it ran out."""

import os
from pathlib import Path

from clozeline.machine.cores import CGROUPS, MEMBERSHIP, groups_of

_FILES = ("memory.max", "memory.limit_in_bytes")
"""Limit files of control groups, versions 2 and 1."""
_VMSTAT = Path("/proc/vmstat")


def available_bytes(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the smallest of the machine's memory and the limits of this process's control groups."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files = (folder / name for folder in groups_of("memory", cgroups, membership) for name in _FILES)
    limits = (file.read_text(encoding="utf-8").strip() for file in files if file.is_file())
    return min([machine, *(int(limit) for limit in limits if limit != "max")])


def out_of_memory_kills(vmstat: Path = _VMSTAT) -> int | None:
    """Return how many processes the kernel has killed on this machine because memory ran out, containers included.

    None where the system does not count them; Linux counts since 4.13.
    """
    lines = vmstat.read_text(encoding="utf-8").splitlines() if vmstat.is_file() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
