"""The step of a nightly run that sends its results to the project's remote."""

from pathlib import Path
from typing import Final

from prefect import State, get_run_logger, task
from prefect.cache_policies import NO_CACHE

from clozeline.system.errors import TransientError
from clozeline.versions import remote

_RETRY_DELAYS_SECONDS: Final = [5.0, 30.0, 120.0]


def _is_transient(task: object, task_run: object, state: State[None]) -> bool:
    return isinstance(state.result(raise_on_failure=False), TransientError)


@task(
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=len(_RETRY_DELAYS_SECONDS),
    retry_delay_seconds=_RETRY_DELAYS_SECONDS,
    retry_condition_fn=_is_transient,
)
def push(project: Path) -> None:
    """Push data and run cache to the remote, if there is one; raises the errors of `versions.remote.push`."""
    num_sent = remote.push(project)
    get_run_logger().info("pushed %d objects", num_sent)
