"""Where a project stands: champions, scheduled runs, disk, remote. If one does not answer, the others are shown."""

import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TypeVar

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort

from clozeline.orchestration.prefect_adapter import deployments_of, runs_of
from clozeline.orchestration.servers import answering_server
from clozeline.records.record import Record
from clozeline.registry import decisions, versions
from clozeline.registry.models import CANDIDATE, CHAMPION, MODEL_PREFIX
from clozeline.system.errors import ClozelineError
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.tracking.addresses import database_of
from clozeline.versions import remote

_PLANNED = [StateType.SCHEDULED]
_STARTED = [kind for kind in StateType if kind != StateType.SCHEDULED]
# What to do after these final states; for others the run's message says it.
_NEXT_STEPS = MappingProxyType(
    {
        "Held": "look at reports/report.html, then `clozeline release --accept`, or leave the champion as it is",
        "Drifted": "look at what clients send now; a nightly run has been started, at most one a day",
        "ContractBroken": "correct the source (or remove contract.lock if the data are right), then `clozeline run`",
        "Crashed": "nothing, it is run again; if it crashes each time, read work/logs and the worker's log",
    }
)
_UNSUCCESSFUL = {StateType.FAILED, StateType.CRASHED}
_ENDED = {*_UNSUCCESSFUL, StateType.COMPLETED, StateType.CANCELLED}
_LATE = "Late"
T = TypeVar("T")


class ScheduledRun(Record):
    """The last run of a deployment, and when the next one is due."""

    deployment: str
    state: str = ""  # empty: it never ran
    started: datetime | None = None
    ended: datetime | None = None
    message: str = ""  # what its last state says, or that a run is late
    do: str = ""
    next: datetime | None = None  # None: it has no active schedule, or its server has not planned it yet


def scheduled_runs() -> list[ScheduledRun]:
    """Return the last run of each of our deployments, by name.

    Raises:
        ParamsError: PREFECT_API_URL is not set, or the server refuses the password.
        TransientError: the server does not answer.
    """
    with answering_server() as client:
        return [_of(client, deployment) for deployment in sorted(deployments_of(client), key=lambda it: it.name)]


def _of(client: SyncPrefectClient, deployment: DeploymentResponse) -> ScheduledRun:
    last = next(iter(runs_of(client, deployment.id, _STARTED, FlowRunSort.START_TIME_DESC, limit=1)), None)
    due_first = FlowRunSort.EXPECTED_START_TIME_ASC
    planned = next(iter(runs_of(client, deployment.id, _PLANNED, due_first, limit=1)), None)
    due = planned.expected_start_time if planned else None
    state = last.state if last else None
    message, do = "", ""
    if planned is not None and planned.state_name == _LATE and (state is None or state.type in _ENDED):
        message = "a run is late: no worker has started it"
        do = f"`python -m clozeline.flows.worker --pool {deployment.work_pool_name}`"
    if state is not None and state.type in _UNSUCCESSFUL:
        message = state.message or ""
        do = _NEXT_STEPS.get(state.name or "", "see its message, then `clozeline run`")
    return ScheduledRun(
        deployment=deployment.name,
        state=(state.name or state.type.value) if state else "",
        started=last.start_time if last else None,
        ended=last.end_time if last else None,
        message=message or (state and state.message) or "",
        do=do,
        next=due,
    )


class ModelStatus(Record):
    """The champion of one model, and the candidate that has not replaced it."""

    name: str
    champion: str | None
    since: datetime | None = None
    why: str = ""
    who: str = ""
    candidate: str | None = None
    outcome: str = ""  # decision about the candidate
    reason: str = ""
    serve_from: datetime | None = None  # time from which a fleet answers by the champion, if it is still to come

    @property
    def of_fleet(self) -> list[str]:
        """Lines about a change of version that is under way."""
        if not self.serve_from:
            return []
        back = f"`clozeline rollback {self.name.removeprefix(MODEL_PREFIX)}`"
        return [f"a fleet serves it from {self.serve_from:%H:%M:%S} UTC on; {back} takes the change back"]


class Disk(Record):
    free_bytes: int
    total_bytes: int


class Remote(Record):
    url: str
    num_missing: int  # cached objects that it lacks


class Problem(Record):
    """A source that could not be read."""

    about: str
    problem: str
    given: str
    do: str


class ProjectStatus(Record):
    models: list[ModelStatus] | None  # None, like the other fields: unknown, because of one of the problems
    runs: list[ScheduledRun] | None
    disk: Disk
    remote: Remote | None  # None also for a project that has no remote
    problems: list[Problem]


def project_status(workspace: Workspace) -> ProjectStatus:
    """Return where the project stands. It changes nothing."""
    problems: list[Problem] = []

    def read(about: str, source: Callable[[], T]) -> T | None:
        try:
            return source()
        except ClozelineError as error:
            given = str(error.given or "")
            problems.append(Problem(about=about, problem=error.problem, given=given, do=error.do))
            return None

    disk = shutil.disk_usage(workspace.root)
    return ProjectStatus(
        models=read("models", lambda: _models(tracking_uri(workspace))),
        runs=read("scheduled runs", scheduled_runs),
        disk=Disk(free_bytes=disk.free, total_bytes=disk.total),
        remote=read("remote", lambda: _remote(workspace)),
        problems=problems,
    )


def _models(address: str) -> list[ModelStatus]:
    database = database_of(address)
    if database is not None and not database.exists():
        return []
    registry = versions.Registry.open(address)
    names = {*registry.names_with(CHAMPION), *registry.names_with(CANDIDATE)}
    return [_model(registry, address, name) for name in sorted(names)]


def _model(registry: versions.Registry, address: str, name: str) -> ModelStatus:
    champion, candidate = registry.at(name, CHAMPION), registry.at(name, CANDIDATE)
    last = next(iter(registry.changes(name)[-1:]), None)
    decision = decisions.newest_decision(candidate, registry.run_of(candidate), address) if candidate else None
    serves_from = champion.announcement.serve_from_seconds if champion and champion.announcement else 0.0
    return ModelStatus(
        name=name,
        champion=champion.version if champion else None,
        since=last.when if last else None,
        why=last.why if last else "",
        who=last.who if last else "",
        candidate=candidate.version if candidate else None,
        outcome=decision.outcome if decision else "",
        reason=(decision.reason or "; ".join(str(gate) for gate in decision.gates if not gate.is_passed))
        if decision
        else "",
        serve_from=datetime.fromtimestamp(serves_from, UTC) if serves_from > time.time() else None,
    )


def _remote(workspace: Workspace) -> Remote | None:
    url = remote.address(workspace.root)
    return Remote(url=url, num_missing=remote.missing(workspace.root) or 0) if url else None
