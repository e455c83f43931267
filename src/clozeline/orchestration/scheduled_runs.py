"""The scheduled runs that a Prefect server knows: the last of each deployment, and the next."""

from collections.abc import Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    DeploymentFilterTags,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from pydantic import BaseModel, ConfigDict

from clozeline.orchestration.deployments import OWNED_TAG
from clozeline.orchestration.temporary_server import answering_server

_PLANNED: Final = [StateType.SCHEDULED]
_STARTED: Final = [kind for kind in StateType if kind != StateType.SCHEDULED]
_NEXT_STEPS: Final = MappingProxyType(
    {
        "Held": "look at reports/report.html, then `clozeline release --accept`, or leave the champion as it is",
        "Drifted": "look at what clients send now; a nightly run has been started, at most one a day",
        "ContractBroken": "correct the source (or remove contract.lock if the data are right), then `clozeline run`",
        "Crashed": "nothing, it is run again; if it crashes each time, read work/logs and the worker's log",
    }
)
"""What to do after these final states; for others the run's message says it."""
_UNSUCCESSFUL: Final = {StateType.FAILED, StateType.CRASHED}
_ENDED: Final = {*_UNSUCCESSFUL, StateType.COMPLETED, StateType.CANCELLED}
_LATE: Final = "Late"


class ScheduledRun(BaseModel):
    """The last run of a deployment, and when the next one is due."""

    model_config = ConfigDict(frozen=True)

    deployment: str
    state: str = ""
    """Empty: it never ran."""
    started: datetime | None = None
    ended: datetime | None = None
    message: str = ""
    """What its last state says, or that a run is late."""
    do: str = ""
    next: datetime | None = None
    """None: it has no active schedule, or its server has not planned it yet."""


def scheduled_runs() -> list[ScheduledRun]:
    """Return the last run of each of our deployments, by name.

    Raises:
        ParamsError: PREFECT_API_URL is not set, or the server refuses the password.
        TransientError: the server does not answer.
    """
    owned = DeploymentFilter(tags=DeploymentFilterTags(all_=[OWNED_TAG]))
    with answering_server() as client:
        found = client.read_deployments(deployment_filter=owned)
        return [_of(client, deployment) for deployment in sorted(found, key=lambda deployment: deployment.name)]


def _of(client: SyncPrefectClient, deployment: DeploymentResponse) -> ScheduledRun:
    last = _first(client, deployment, _STARTED, FlowRunSort.START_TIME_DESC)
    planned = _first(client, deployment, _PLANNED, FlowRunSort.EXPECTED_START_TIME_ASC)
    due = planned.expected_start_time if planned else None
    message, do = "", ""
    is_waiting = last is not None and last.state is not None and last.state.type not in _ENDED
    if planned is not None and planned.state_name == _LATE and not is_waiting:
        message = "a run is late: no worker has started it"
        do = f"`python -m clozeline.flows.worker --pool {deployment.work_pool_name}`"
    if last is None or last.state is None:
        return ScheduledRun(deployment=deployment.name, message=message, do=do, next=due)
    if last.state.type in _UNSUCCESSFUL:
        message = last.state.message or ""
        do = _NEXT_STEPS.get(last.state.name or "", "see its message, then `clozeline run`")
    return ScheduledRun(
        deployment=deployment.name,
        state=last.state.name or last.state.type.value,
        started=last.start_time,
        ended=last.end_time,
        message=message or last.state.message or "",
        do=do,
        next=due,
    )


def _first(
    client: SyncPrefectClient, deployment: DeploymentResponse, states: Sequence[StateType], sort: FlowRunSort
) -> FlowRun | None:
    found = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states)))),
        sort=sort,
        limit=1,
    )
    return found[0] if found else None
