"""Every undocumented part of Prefect that is used; tests/orchestration/test_prefect_adapter.py checks each.

Flows and the rest of this room use the documented `flow`, `task`, `runtime`, loggers, artifacts and client.

A scheduled run that starts after a crash runs never beside a running one, and not in an endless crash loop.
"""

import logging
import os
import re
import sys
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any, Self, cast
from uuid import UUID

from prefect import State, runtime
from prefect.blocks.notifications import SlackWebhook
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import refresh_global_settings_context
from prefect.events.schemas.automations import AutomationCore as AutomationCore
from prefect.futures import PrefectFuture
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Running
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from prefect.types import SecretDict as SecretDict
from pydantic import SecretStr

from clozeline.cluster.store import takes_whole_stages
from clozeline.system import errors, workspace

# Prefect has no block for e-mail by SMTP. Its block for Slack passes an address that is not Slack's on to Apprise.


# Variable of a server: it answers only requests with this `USER:PASSWORD`.
SERVER_PASSWORD = "PREFECT_SERVER_API_AUTH_STRING"
# Path of the endpoint that answers when a server is ready.
HEALTH = "/api/health"
# Tag of the deployments that belong to the file.
OWNED_TAG = "clozeline"
LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
_MOST_AT_ONCE = 16
_RETRY_DELAYS_SECONDS = [5.0, 30.0, 120.0, 600.0]
_APPLICATION = "prefect.server.api.server:create_app"
# These records repeat the record before them, or report each stage that did not start. A run that a person stopped is
# not a crash: the command says that it was stopped.
_REPEATED = (
    "Finished in state Completed(",
    "Finished in state Failed(",
    "Finished in state NotReady(",
    "Crash detected! Execution was aborted by ",
    "Finished in state Crashed('Execution was aborted by ",
)
_OF_THE_SERVER = ("Beginning flow run ", "Beginning subflow run ", "View at ")
SERVER_WITHOUT_SCHEDULES = {
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
}
_ENDED = (StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED)
_MOST_CRASHES = 3
_WITHIN = timedelta(hours=6)
_FLOW_RUN = re.compile(r"flow run ([0-9a-f-]{36})")


class _Stages(ThreadPoolTaskRunner[Any]):
    def duplicate(self) -> Self:
        """Return the runner of one flow run."""
        return type(self)(max_workers=_MOST_AT_ONCE if takes_whole_stages() else 1)


# Runs one stage at a time, because each uses every core; with a cluster, all whose inputs are there, up to a limit for
# the processes that wait for nodes. The cast is needed because Prefect types a runner by its kind of future, while a
# flow accepts any.
STAGES = cast("TaskRunner[PrefectFuture[Any]]", _Stages())


def _is_transient(task: object, task_run: object, state: State[Any]) -> bool:
    return isinstance(state.result(raise_on_failure=False), errors.TransientError)


# Options of a task that acts on the outside world: it runs each time.
EFFECT: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
# Options of one that is tried again after a `TransientError`, too, through an outage of more than 10 minutes.
RETRIES: dict[str, Any] = {
    **EFFECT,
    "retries": len(_RETRY_DELAYS_SECONDS),
    "retry_delay_seconds": _RETRY_DELAYS_SECONDS,
    "retry_condition_fn": _is_transient,
}
# The same for a task in a thread, where no signal ends Prefect's wait: it waits itself for `seconds_before`.
STAGE_RETRIES: dict[str, Any] = {**RETRIES, "retry_delay_seconds": 0.0}


class WithoutTraceback(logging.Filter):
    """Logs each `ClozelineError` once, without its traceback, and drops records that only repeat an earlier one."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, errors.ClozelineError):
            if error.is_reported:
                return False
            error.is_reported = True
            record.msg, record.args, record.exc_info = "error: %s", (str(error),), None
        return not (isinstance(record.msg, str) and record.msg.startswith(_REPEATED))


class WithoutLinks(logging.Filter):
    """Drops the name of a run and the link to its page: a temporary server is gone before anyone follows the link."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (isinstance(record.msg, str) and record.msg.startswith(_OF_THE_SERVER))


_PLAIN = WithoutTraceback()
_UNLINKED = WithoutLinks()


def tell_errors_plainly() -> None:
    """Make flow and task runs log a `ClozelineError` by its message, once. A second call changes nothing."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_PLAIN)


def seconds_before(attempt: int) -> float:
    """Return how long a task waits before an attempt; the first one is 1."""
    return _RETRY_DELAYS_SECONDS[attempt - 2] if attempt > 1 else 0.0


def api_url() -> str | None:
    """Return the API address in Prefect's settings, if any."""
    return get_current_settings().api.url


def read_environment() -> None:
    """Make Prefect's settings follow the environment, which it reads at its import only."""
    refresh_global_settings_context()


def has_server_password() -> bool:
    """Return whether Prefect's settings have a password for a server that starts now."""
    return get_current_settings().server.api.auth_string is not None


def use_temporary_server(url: str, password: str) -> None:
    """Make this process and its children use the Prefect server at `url` from now on, and print no links to it."""
    os.environ.update(PREFECT_API_URL=url, PREFECT_API_AUTH_STRING=password)
    read_environment()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_UNLINKED)


def server_command(host: str, port: int) -> list[str]:
    """Return a command that is the server itself; `prefect server start` would start it in a child process."""
    return [sys.executable, "-m", "uvicorn", "--factory", _APPLICATION, "--host", host, "--port", str(port)]


def page_settings(api_url: str) -> dict[str, str]:
    """Return server settings: the web page calls the API at `api_url` and shows no advertisements.

    By default the page calls port 4200, whatever port serves it.
    """
    return {"PREFECT_SERVER_UI_API_URL": api_url, "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false"}


def apprise_block(address: str) -> SlackWebhook | None:
    """Return a block for `address`; None if Apprise does not know its kind: such a block would drop every message."""
    logger = logging.getLogger("apprise")
    was_disabled, logger.disabled = logger.disabled, True  # it would log the secret address
    try:
        block = SlackWebhook(url=SecretStr(address))
    finally:
        logger.disabled = was_disabled
    return block if block._apprise_client else None


def flow_run_id() -> str | None:
    """Return the id of the outermost flow run of this process; None outside a flow."""
    found = runtime.flow_run.root_flow_run_id or runtime.flow_run.id
    return None if found is None else str(found)


def living_run(lock_file: Path, *, wait_seconds: float = 15.0) -> str | None:
    """Return the id of the flow run that holds the lock of the workspace; None if it is free or becomes free.

    `wait_seconds` is as long as the stage of a killed run may take to end. The kernel knows whether a run is alive;
    Prefect only sees its heartbeats.
    """
    try:
        with workspace.run_lock(lock_file, wait_seconds=wait_seconds):
            return None
    except errors.TransientError:
        found = _FLOW_RUN.search(lock_file.read_text(encoding="utf-8"))
        return found[1] if found else None


def leave_to(run: str) -> State[object]:
    """Return the final state of a run that is not needed, because `run` is alive; correct the state of `run`.

    Prefect marks a run as crashed if its heartbeats do not reach the server, as in a network outage.
    """
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(run)).state
        if state is not None and state.type == StateType.CRASHED:
            client.set_flow_run_state(UUID(run), Running(message="it lives: it holds the run lock"), force=True)
    return Cancelled(message=f"flow run {run} is still at work in this workspace")


def require_no_crash_loop() -> None:
    """Refuse to run a deployment again whose last runs all crashed.

    Raises:
        ClozelineError: the last `_MOST_CRASHES` runs crashed within `_WITHIN`.
    """
    if runtime.deployment.id is None:
        return
    with get_client(sync_client=True) as client:
        crashes = last_crashes(client, UUID(str(runtime.deployment.id)))
    if crashes >= _MOST_CRASHES:
        raise errors.ClozelineError(
            f"the last {crashes} runs crashed within {_WITHIN.total_seconds() / 3600:.0f} hours, so this one would too",
            do="read work/logs and the worker's log, remove the cause, then start a run by hand: `clozeline run`",
        )


def last_crashes(client: SyncPrefectClient, deployment: UUID) -> int:
    """Return the number of recent runs that crashed since the last one that ended in another way."""
    runs = runs_of(client, deployment, _ENDED, FlowRunSort.START_TIME_DESC, limit=_MOST_CRASHES)
    since = datetime.now(UTC) - _WITHIN
    crashed = [run.state is not None and run.state.type == StateType.CRASHED and run.start_time for run in runs]
    return len(list(takewhile(lambda started: started and started >= since, crashed)))


def deployments_of(client: SyncPrefectClient) -> list[DeploymentResponse]:
    """Return our deployments: those with `OWNED_TAG`."""
    owned = DeploymentFilter.model_validate({"tags": {"all_": [OWNED_TAG]}})
    return client.read_deployments(deployment_filter=owned)


def runs_of(
    client: SyncPrefectClient, deployment: UUID, states: Collection[StateType], sort: FlowRunSort, *, limit: int
) -> list[FlowRun]:
    """Return the first runs of a deployment that are in one of `states`."""
    return client.read_flow_runs(
        deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment]}}),
        flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": list(states)}}}),
        sort=sort,
        limit=limit,
    )
