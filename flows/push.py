"""The step of a nightly run that sends its results to the project's remote."""

from pathlib import Path

from prefect import get_run_logger, task

from clozeline.orchestration.prefect_adapter import RETRIES
from clozeline.versions import remote


@task(**RETRIES)
def push(project: Path) -> None:
    """Push data and run cache to the remote, if there is one; raises the errors of `versions.remote.push`."""
    num_sent = remote.push(project)
    get_run_logger().info("pushed %d objects", num_sent)
