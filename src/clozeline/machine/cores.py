"""Number of cores this process may use, which a container can limit."""

import os
from pathlib import Path

from clozeline.errors import ParamsError

MOST = "CLOZELINE_CORES"
"""Environment variable with the most cores that a process uses; machines with different numbers then do the same."""
CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


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
