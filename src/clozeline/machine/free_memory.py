"""Memory this process may still allocate, which a container can limit."""

from pathlib import Path

from clozeline.machine.cores import CGROUPS, MEMBERSHIP, groups_of

_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of control groups, versions 2 and 1: limit, usage, and the droppable page cache counted in the usage."""


def free_memory_bytes(
    cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP, meminfo: Path = Path("/proc/meminfo")
) -> int | None:
    """Return the smallest amount left in the machine and in each control group; None if the system does not report
    it."""
    folders = groups_of("memory", cgroups, membership)
    left = [bytes_left for folder in folders if (bytes_left := _left(folder)) is not None]
    if meminfo.is_file():
        left.append(1024 * _figure(meminfo, "MemAvailable:"))
    return min(left, default=None)


def _left(folder: Path) -> int | None:
    """Bytes left in the control group at `folder`; None if it has no limit."""
    for limit, used, dropped in _VERSIONS:
        if (folder / limit).is_file():
            limit_bytes = (folder / limit).read_text(encoding="utf-8").strip()
            if limit_bytes == "max":
                return None
            used_bytes = int((folder / used).read_text(encoding="utf-8"))
            return int(limit_bytes) - used_bytes + _figure(folder / "memory.stat", dropped)
    return None


def _figure(file: Path, name: str) -> int:
    """Number after `name` in a file of `name number` lines; 0 if the name is missing."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)
