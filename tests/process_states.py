"""Checks of processes that tests start and that must end."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil


def wait_for(what: Callable[[], bool], seconds: float, every_seconds: float = 0.1) -> bool:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(every_seconds)
    return what()


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start_of_long_stage(root: Path) -> None:
    """Make the toy project's first stage stay until it is ended."""
    (root / "raw.txt").write_text("long")


def stage_pids(root: Path) -> list[int]:
    """Return the pids of the long stage and of its child in a session of its own; empty before they start."""
    file = root / "pids"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []
