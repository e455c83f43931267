"""Compares the current traffic of a server with the first traffic of each model version."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from prefect import State, flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import StateType
from prefect.events import emit_event

from clozeline.orchestration.drift import DriftLimits, DriftState, Verdict, ask
from clozeline.orchestration.prefect_adapter import tell_errors_plainly
from clozeline.serving.access import keys_in_environment
from clozeline.system.errors import GateError, without_secrets
from clozeline.system.workspace import Workspace, reach_this_machine_directly

EVENT = "clozeline.drift"
# Prefix of the resource of an event; the name of the model follows.
RESOURCE = "clozeline.model"


class DriftError(GateError):
    """The traffic of a model has drifted."""


@flow(name="drift", validate_parameters=False)
def drift(
    project: Path = Path(), url: str | None = None, limits: Mapping[str, float] | None = None
) -> list[Verdict] | State[object]:
    """Compare the new traffic of each version that `url` serves with its first traffic, at least `min_texts` texts.

    `url` may be several URLs, separated by commas, such as those of the replicas of a fleet: their
    traffic is added. Without it the server is the one at CLOZELINE_SERVER, else at port 8000 of this machine. The API
    key is the first one in CLOZELINE_API_KEYS; only the servers of this worker's own environment get it, not those that
    a run names. The state between two runs is kept in `work/drift`.
    `limits` has the fields of orchestration/drift.py's `DriftLimits` that differ from the default there.

    Raises:
        ParamsError: `limits` names an unknown field, or gives it no number; or `url` is not HTTP.
        DriftError: a figure is beyond its limit. Each such model is an event, `clozeline.drift`, for which
            infra/prefect.yaml starts a retraining. The run's final state is `Drifted`, which an alert matches.
        TransientError: the server does not answer.
        DataError: it is not a server of Clozeline.
        ArtifactError: the stored state is damaged.
    """
    tell_errors_plainly()
    reach_this_machine_directly()
    chosen = DriftLimits.of(limits or {})
    own = os.environ.get("CLOZELINE_SERVER") or "http://127.0.0.1:8000"
    url = url or own
    workspace = Workspace(project.resolve())
    file = workspace.work / "drift" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"
    key = next(iter(keys_in_environment() or ()), None)
    trusted = _servers_in(own)
    servers = {server: ask(server, key if server in trusted else None) for server in _servers_in(url)}
    anew = "remove it: the traffic from now on then becomes the reference"
    state, verdicts = DriftState.read(file, absent=DriftState(), do=anew).look(servers, chosen)
    state.write(file)
    lines = [str(verdict) for verdict in verdicts]
    get_run_logger().info("%s", "\n".join(lines))
    create_markdown_artifact("\n".join([f"# {without_secrets(url)}", *(f"- {line}" for line in lines)]), key="drift")
    drifted = [verdict for verdict in verdicts if verdict.is_drift]
    for verdict in drifted:
        _emit(verdict, url)
    if drifted:
        beyond = "; ".join(str(shift) for verdict in drifted for shift in verdict.shifts if not shift.is_passed)
        return _failed(
            DriftError(
                f"the traffic has drifted: {', '.join(verdict.model for verdict in drifted)}: {beyond}",
                do="check what clients send now; add such text to the corpus and run the pipeline again, "
                f"or remove {file} to accept the new traffic as the reference",
            )
        )
    return verdicts


def _servers_in(urls: str) -> list[str]:
    return [server.rstrip("/") for server in map(str.strip, urls.split(",")) if server]


def _failed(error: DriftError) -> State[object]:
    return State(type=StateType.FAILED, name="Drifted", message=str(error), data=error)


def _emit(verdict: Verdict, url: str) -> None:
    """Send the Prefect server an event: which model has drifted, and its figures."""
    emit_event(
        event=EVENT,
        resource={"prefect.resource.id": f"{RESOURCE}.{verdict.model}", "prefect.resource.name": verdict.model},
        payload={
            "version": verdict.version,
            "server": without_secrets(url),
            "num_texts": verdict.num_texts,
            "shifts": [
                {"name": shift.name, "given": shift.given, "limit": shift.limit, "is_drift": not shift.is_passed}
                for shift in verdict.shifts
            ],
        },
    )
