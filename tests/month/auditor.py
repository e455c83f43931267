"""The auditor: decides by the public state of registry, DVC and Prefect alone whether a month was sound.

It reads MLflow by MLflow's client, Prefect by its API, and DVC's remote from a folder of its own with an empty cache.
What a record says is not believed: gates are computed again from the figures that were stored with the version.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mlflow.tracking import MlflowClient

from clozeline.registry.lineage import trace, verify
from clozeline.system.errors import ClozelineError
from clozeline.system.workspace import Workspace
from tests.month.promotions import changes_of, faults_in, models_of

_ENDED = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})


@dataclass(frozen=True)
class FlowRun:
    """A flow run as Prefect's API gives it."""

    id: str
    flow: str
    state_type: str
    state_name: str
    start_time: str
    is_scheduled: bool = False  # whether a schedule planned it

    @property
    def has_ended(self) -> bool:
        return self.is_scheduled or self.state_type in _ENDED

    @classmethod
    def of(cls, run: dict[str, Any], flows: dict[str, str]) -> "FlowRun":
        flow, state, time = flows[run["flow_id"]], run["state"], run["start_time"] or run["expected_start_time"]
        return cls(run["id"], flow, state["type"], state["name"], time, run["auto_scheduled"])


@dataclass
class Audit:
    """Findings."""

    promotions: int
    held: int
    lost: list[str]
    unverified: list[str]  # champions whose promotion is not justified, or whose lineage is broken

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.unverified)


class Auditor:
    """Reads the state of one project; `root` is a folder of its own with the files that git holds."""

    def __init__(self, root: Path, tracking_uri: str, accepted: set[tuple[str, str]] | None = None) -> None:
        self._workspace = Workspace(root)
        self._client = MlflowClient(tracking_uri)
        self._tracking_uri = tracking_uri
        self.accepted = accepted or set()  # models and versions that an answer of the scenario promoted
        self._verified: set[tuple[str, str]] = set()

    def verify_new_champions(self) -> list[str]:
        """Verify each champion that no earlier call verified, while everything behind it has to exist."""
        return list(self._broken(is_again=False))

    def audit(self, runs: Sequence[FlowRun], num_missing_in_remote: int = 0) -> Audit:
        """Return what the state after the month shows; present champions are verified once more."""
        unverified, promotions = list(self._broken(is_again=True)), 0
        known = {run.id for run in runs}
        for name in models_of(self._client):
            changes = changes_of(self._client, name)
            promotions += len(changes.promotions)
            unverified += changes.faults
            for promotion in changes.promotions:
                is_accepted = (name, promotion.version) in self.accepted
                unverified += faults_in(promotion, self._client, known, is_accepted=is_accepted)
        lost = [*_unfinished(runs), *self._lost_in_mlflow(runs)]
        if num_missing_in_remote:
            lost.append(f"the remote lacks {num_missing_in_remote} objects")
        held = sum(run.state_name == "Held" for run in runs)
        return Audit(promotions, held, lost, unverified)

    def _broken(self, *, is_again: bool) -> Iterator[str]:
        os.environ["MLFLOW_TRACKING_URI"] = self._tracking_uri
        for name in models_of(self._client):
            aliases = self._client.get_registered_model(name).aliases
            named = {(name, str(version)) for alias, version in aliases.items() if alias in {"champion", "previous"}}
            known = {(name, version) for version in changes_of(self._client, name).champions}
            for model, version in sorted((known - self._verified) | (named if is_again else set())):
                try:
                    verify(trace(f"models:/{model}/{version}", self._workspace), self._workspace)
                    self._verified.add((model, version))
                except ClozelineError as error:
                    yield f"{model} version {version}: {error}"

    def _lost_in_mlflow(self, runs: Sequence[FlowRun]) -> Iterator[str]:
        """Yield the runs that MLflow shows as active, lacks, or has with gaps in their curves."""
        experiments = [known.experiment_id for known in self._client.search_experiments()]
        tracked = self._client.search_runs(experiments, max_results=5000) if experiments else []
        for run in tracked:
            if run.info.status == "RUNNING":
                yield f"MLflow's run {run.info.run_name} is RUNNING"
            if run.data.tags.get("dvc.stage") == "pretrain" and run.info.status == "FINISHED":
                steps = [point.step for point in self._client.get_metric_history(run.info.run_id, "loss")]
                if not steps or len({later - earlier for earlier, later in pairwise(steps)}) > 1:
                    yield f"the curve of MLflow's run {run.info.run_name} has gaps: {steps}"
        finished = {run.data.tags.get("prefect.flow_run_id") for run in tracked if run.info.status == "FINISHED"}
        for run in runs:
            if run.flow == "pipeline" and run.state_type == "COMPLETED" and run.id not in finished:
                yield f"MLflow has no finished run of Prefect's run {run.id}"


def _unfinished(runs: Sequence[FlowRun]) -> Iterator[str]:
    """Yield the runs that never ended, and scheduled work that crashed and was not done again."""
    yield from (f"Prefect's run {run.id} of {run.flow} is {run.state_name}" for run in runs if not run.has_ended)
    begun = sorted((run for run in runs if not run.is_scheduled), key=lambda run: run.start_time)
    nights = [run for run in begun if run.flow == "nightly"]
    if nights and nights[-1].state_type == "CRASHED":
        yield f"Prefect's run {nights[-1].id} crashed, and no other run followed"
