"""Where a project stands: champions, scheduled runs, disk, remote. If one does not answer, the others are shown."""

import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from clozeline.errors import ClozelineError
from clozeline.orchestration.scheduled_runs import ScheduledRun, scheduled_runs
from clozeline.registry import CANDIDATE, CHAMPION, MODEL_PREFIX, Registered
from clozeline.registry.history import newest_decision_about
from clozeline.registry.versions import Registry
from clozeline.tracking.addresses import database_of
from clozeline.versions import remote
from clozeline.workspace import Workspace, tracking_uri

T = TypeVar("T")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class ModelStatus(_Record):
    """The champion of one model, and the candidate that has not replaced it."""

    name: str
    champion: str | None
    since: datetime | None = None
    why: str = ""
    who: str = ""
    candidate: str | None = None
    outcome: str = ""
    """Decision about the candidate."""
    reason: str = ""
    serve_from: datetime | None = None
    """Time from which a fleet answers by the champion, if it is still to come."""

    @property
    def of_fleet(self) -> list[str]:
        """Lines about a change of version that is under way."""
        if not self.serve_from:
            return []
        back = f"`clozeline rollback {self.name.removeprefix(MODEL_PREFIX)}`"
        return [f"a fleet serves it from {self.serve_from:%H:%M:%S} UTC on; {back} takes the change back"]


class Disk(_Record):
    free_bytes: int
    total_bytes: int


class Remote(_Record):
    url: str
    num_missing: int
    """Cached objects that it lacks."""


class Problem(_Record):
    """A source that could not be read."""

    about: str
    problem: str
    given: str
    do: str


class ProjectStatus(_Record):
    models: list[ModelStatus] | None
    """None, like the other fields: unknown, because of one of the problems."""
    runs: list[ScheduledRun] | None
    disk: Disk
    remote: Remote | None
    """None also for a project that has no remote."""
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
    registry = Registry.open(address)
    names = {*registry.names_with(CHAMPION), *registry.names_with(CANDIDATE)}
    return [_model(registry, address, name) for name in sorted(names)]


def _model(registry: Registry, address: str, name: str) -> ModelStatus:
    champion, candidate = registry.at(name, CHAMPION), registry.at(name, CANDIDATE)
    last = next(iter(registry.changes(name)[-1:]), None)
    decision = newest_decision_about(candidate, address) if candidate else None
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
        serve_from=_serve_from(champion),
    )


def _serve_from(champion: Registered | None) -> datetime | None:
    seconds = champion.announcement.serve_from_seconds if champion and champion.announcement else 0.0
    return datetime.fromtimestamp(seconds, UTC) if seconds > time.time() else None


def _remote(workspace: Workspace) -> Remote | None:
    url = remote.address(workspace.root)
    return Remote(url=url, num_missing=remote.missing(workspace.root) or 0) if url else None
