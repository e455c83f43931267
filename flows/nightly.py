"""What runs on a schedule: bring every stage up to date, release what came of it, and report."""

from datetime import UTC, datetime
from pathlib import Path

from prefect import flow

from clozeline.flows.pipeline import pipeline
from clozeline.flows.release import release
from clozeline.reporting.report import write
from clozeline.workspace import Workspace


@flow(name="nightly")
def nightly(project: Path = Path()) -> None:
    """Run `pipeline`, then `release`, and write the report of both; the error of any is this flow's."""
    pipeline(project)
    try:
        release(project)
    finally:
        write(Workspace(project.resolve()), datetime.now(UTC))
