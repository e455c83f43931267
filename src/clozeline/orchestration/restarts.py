"""Rules for a scheduled run that starts after a crash: never beside a running one, and not in an endless crash loop."""

import fcntl
import re
import time
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Final
from uuid import UUID

from prefect import State, runtime
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Cancelled, Running

from clozeline.errors import ClozelineError

_MOST_CRASHES: Final = 3
_WITHIN: Final = timedelta(hours=6)
_FLOW_RUN: Final = re.compile(r"flow run ([0-9a-f-]{36})")


def flow_run_id() -> str | None:
    """Return the id of the outermost flow run of this process; None outside a flow."""
    found = runtime.flow_run.root_flow_run_id or runtime.flow_run.id
    return None if found is None else str(found)


def living_run(lock_file: Path, *, wait_seconds: float = 15.0) -> str | None:
    """Return the id of the flow run that holds the lock of the workspace; None if it is free or becomes free.

    `wait_seconds` is as long as the stage of a killed run may take to end. The kernel knows whether a run is alive;
    Prefect only sees its heartbeats.
    """
    deadline = time.monotonic() + wait_seconds
    while lock_file.exists():
        with lock_file.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                file.seek(0)
                found = _FLOW_RUN.search(file.read())
        if time.monotonic() >= deadline:
            return found[1] if found else None
        time.sleep(0.2)
    return None


def leave_to(run: str) -> State[object]:
    """Return the final state of a run that is not needed, because `run` is alive; correct the state of `run`.

    Prefect marks a run as crashed if its heartbeats do not reach the server, as in a network outage.
    """
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(run)).state
        if state is not None and state.type == StateType.CRASHED:
            client.set_flow_run_state(
                UUID(run), Running(message="it lives: it holds the lock of its workspace"), force=True
            )
    return Cancelled(message=f"flow run {run} is still at work in this workspace")


def require_no_crash_loop() -> None:
    """Refuse to run a deployment again whose last runs all crashed.

    Raises:
        ClozelineError: the last `_MOST_CRASHES` runs crashed within `_WITHIN`.
    """
    if runtime.deployment.id is None:
        return
    with get_client(sync_client=True) as client:
        crashes = _last_crashes(client, UUID(str(runtime.deployment.id)))
    if crashes >= _MOST_CRASHES:
        raise ClozelineError(
            f"the last {crashes} runs crashed, so this one would too",
            given=f"{crashes} crashes in a row within {_WITHIN.total_seconds() / 3600:.0f} hours",
            expected="runs that end by themselves",
            do="read work/logs and the worker's log, remove the cause (memory, disk, a machine that restarts), then"
            " start a run by hand: `clozeline run`",
        )


def _last_crashes(client: SyncPrefectClient, deployment: UUID) -> int:
    """Return the number of recent runs that crashed since the last one that ended in another way."""
    ended = FlowRunFilterStateType(any_=[StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED])
    runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment])),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=ended)),
        sort=FlowRunSort.START_TIME_DESC,
        limit=_MOST_CRASHES,
    )
    since = datetime.now(UTC) - _WITHIN
    return len(list(takewhile(lambda run: _is_recent_crash(run, since), runs)))


def _is_recent_crash(run: FlowRun, since: datetime) -> bool:
    has_crashed = run.state is not None and run.state.type == StateType.CRASHED
    return has_crashed and run.start_time is not None and run.start_time >= since
