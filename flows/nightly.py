"""The scheduled flow: bring every stage up to date, release the packages, and write the report."""

from datetime import UTC, datetime
from pathlib import Path

from prefect import flow

from clozeline.flows.pipeline import pipeline
from clozeline.flows.release import release
from clozeline.reporting.report import write
from clozeline.workspace import Workspace


@flow(name="nightly")
def nightly(project: Path = Path()) -> None:
    """Run `pipeline` and `release`, and write the report even if the release fails; any error fails this flow."""
    pipeline(project)
    try:
        release(project)
    finally:
        write(Workspace(project.resolve()), datetime.now(UTC))
