"""How much memory this process may use: less than the machine has, in a container."""

import os
from pathlib import Path

from clozeline.machine.cores import CGROUPS, MEMBERSHIP, groups_of

_FILES = ("memory.max", "memory.limit_in_bytes")
"""Of control groups of version 2 and 1."""


def available_bytes(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """The smaller of the machine's memory and the limits of this process's control groups."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files = (folder / name for folder in groups_of("memory", cgroups, membership) for name in _FILES)
    limits = (file.read_text(encoding="utf-8").strip() for file in files if file.is_file())
    return min([machine, *(int(limit) for limit in limits if limit != "max")])
