"""Logs of past runs, kept for the newest `NUM_KEPT` runs."""

import shutil
from pathlib import Path
from typing import Final
from uuid import UUID

NUM_KEPT: Final = 50


def forget_old_runs(logs: Path) -> None:
    """Remove the folders of all runs but the newest from `logs`. Call it while holding the run lock.

    Other files stay. A folder that cannot be removed stays too, because a run must not fail for that.
    """
    newest_first = sorted(run_folders(logs), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in newest_first[NUM_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def run_folders(logs: Path) -> list[Path]:
    """Return the folder of each run in `logs`."""
    return [folder for folder in logs.glob("*") if folder.is_dir() and _is_of_a_run(folder)]


def _is_of_a_run(folder: Path) -> bool:
    """Whether the name is a UUID, as Prefect's run ids are."""
    try:
        UUID(folder.name)
    except ValueError:
        return False
    return True
