"""What the stages of past runs wrote, kept for a bounded number of runs."""

import shutil
from pathlib import Path
from typing import Final
from uuid import UUID

NUM_KEPT: Final = 50


def forget_old_runs(logs: Path) -> None:
    """Remove from `logs` the folders of all runs but the newest. What else lies there stays, and so does what cannot be
    removed: a run does not fail for that. Hold the run lock meanwhile.
    """
    runs = [folder for folder in logs.glob("*") if folder.is_dir() and _is_of_a_run(folder)]
    newest_first = sorted(runs, key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in newest_first[NUM_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def _is_of_a_run(folder: Path) -> bool:
    """Prefect names runs by UUIDs."""
    try:
        UUID(folder.name)
    except ValueError:
        return False
    return True
