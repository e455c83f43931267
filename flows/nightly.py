"""The scheduled flow: bring every stage up to date, release the packages, and write the report."""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from prefect import flow

from clozeline.errors import ClozelineError
from clozeline.flows.pipeline import pipeline
from clozeline.flows.release import release
from clozeline.reporting.report import write
from clozeline.workspace import Workspace


@flow(name="nightly")
def nightly(project: Path = Path()) -> None:
    """Run `pipeline` and `release`, and write the report even if one of them fails; any error fails this flow."""
    try:
        pipeline(project)
        release(project)
    except ClozelineError:
        with suppress(ClozelineError):  # the first error is the one to tell
            _report(project)
        raise
    _report(project)


def _report(project: Path) -> None:
    write(Workspace(project.resolve()), datetime.now(UTC))
