"""What runs on a schedule: bring every stage up to date, then release what came of it."""

from pathlib import Path

from prefect import flow

from flows.pipeline import pipeline
from flows.release import release


@flow(name="nightly")
def nightly(project: Path = Path()) -> None:
    """Run `pipeline`, then `release`; the error of either is this flow's."""
    pipeline(project)
    release(project)
