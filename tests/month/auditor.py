"""The auditor: decides by the public state of registry, DVC and Prefect alone whether a month was sound.

It reads MLflow by MLflow's client, Prefect by its API, and DVC's remote from a folder of its own with an empty cache.
What a record says is not believed: gates are computed again from the figures that were stored with the version.
"""

import json
import math
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from mlflow.artifacts import load_dict
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.registry.lineage import trace, verify
from clozeline.system.errors import ClozelineError
from clozeline.system.workspace import Workspace

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


_SUFFIX: Final = ".changes"
_PASSES: Final = {"at least": operator.ge, "at most": operator.le, "above": operator.gt, "below": operator.lt}
_TOLERANCE: Final = 1e-6


@dataclass(frozen=True)
class Promotion:
    """A version that became the champion."""

    name: str
    version: str
    before: str
    evidence: str


@dataclass
class Changes:
    """The changes of one model's champion."""

    promotions: list[Promotion] = field(default_factory=list)
    champions: list[str] = field(default_factory=list)  # versions, in the order in which they became the champion
    faults: list[str] = field(default_factory=list)


def models_of(client: MlflowClient) -> list[str]:
    """Return the names of the registered models."""
    names = [model.name for model in client.search_registered_models(filter_string="name LIKE 'clozeline-%'")]
    return [name for name in names if not name.endswith(_SUFFIX)]


def changes_of(client: MlflowClient, name: str) -> Changes:
    """Return the changes of the champion of model `name`; a fault is one that the list does not explain."""
    found, champion = Changes(), ""
    listed = client.search_model_versions(f"name = '{name}{_SUFFIX}'", order_by=["version_number ASC"])
    for entry in listed:
        change = json.loads(entry.tags["clozeline.change"])
        if change["before"] != champion and "clozeline.done" not in entry.tags:
            continue  # someone else was faster
        if change["before"] != champion:
            found.faults.append(f"{name}: change {entry.version} replaces {change['before']}, not {champion}")
        champion = change["after"]
        found.champions.append(champion)
        if change["kind"] == "promotion":
            found.promotions.append(Promotion(name, champion, change["before"], change["evidence"]))
        else:
            found.faults.append(f"{name}: change {entry.version} is {change['kind']}, which no scenario names")
    alias = str(client.get_registered_model(name).aliases.get("champion", ""))
    if alias != champion:
        found.faults.append(f"{name}: version {alias or 'none'} is the champion, but the last change says {champion}")
    return found


def faults_in(promotion: Promotion, client: MlflowClient, flow_runs: set[str], *, is_accepted: bool) -> list[str]:
    """Return why the evidence does not justify the promotion. `is_accepted`: whether a person overruled its gates."""
    about = f"{promotion.name} version {promotion.version}"
    run_id = client.get_model_version(promotion.name, promotion.version).run_id
    own = f"runs:/{run_id}/"
    if not promotion.evidence.startswith(f"{own}decisions/"):
        return [f"{about}: its evidence is {promotion.evidence or 'missing'}, not a record of its own run"]
    record = _stored(client, run_id, promotion.evidence.removeprefix(own))
    package = promotion.name.removeprefix("clozeline-")
    files = ("evaluate.json", f"export/{package}.json")
    metrics = [_stored(client, run_id, f"evidence/metrics/{name}") for name in files]
    if record is None or None in metrics:
        return [f"{about}: {promotion.evidence} or the figures beside it are gone"]
    faults = [*_said(promotion, record, flow_runs), *_gates(promotion, record, metrics, is_accepted=is_accepted)]
    return [f"{about}: {fault}" for fault in faults]


def _said(promotion: Promotion, record: Mapping[str, Any], flow_runs: set[str]) -> Iterator[str]:
    """Yield what the record says about another decision than this one."""
    said = (record["model"], record["version"], record["outcome"], record["champion_before"] or "")
    if said != (promotion.name, promotion.version, "promoted", promotion.before):
        yield f"its record says {said}"
    if record["prefect_flow_run_id"] not in flow_runs:
        yield f"Prefect knows no run {record['prefect_flow_run_id']}, which decided"


def _gates(
    promotion: Promotion, record: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], *, is_accepted: bool
) -> Iterator[str]:
    """Yield the gates that are missing, failed, or are not about the stored figures."""
    figures = dict(_figures(record, metrics))
    gates = {gate["name"]: gate for gate in record["gates"]}
    wanted = {"unigram_ratio"} | ({"perplexity_ratio", "perplexity_ratio_high"} if promotion.before else set())
    yield from (f"no gate {missing}" for missing in sorted(wanted - set(gates)))
    for name, gate in gates.items():
        if not math.isclose(figures.get(name, math.nan), gate["given"], rel_tol=_TOLERANCE):
            yield f"{name} is {figures.get(name)} by the stored figures, and {gate['given']} in its record"
        is_passed = _PASSES[gate["must_be"]](gate["given"], gate["limit"])
        if not is_passed and not (is_accepted and gate["otherwise"] == "held"):
            yield f"{name} {gate['given']} is not {gate['must_be']} {gate['limit']}"


def _figures(record: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield the figures of an encoder's gates, computed from what was stored."""
    for figures in metrics:
        if figures.get("int8_agreement") is not None:
            yield "int8_agreement", figures["int8_agreement"]
        if "unigram_perplexity" in figures:
            yield "unigram_ratio", figures["unigram_perplexity"] / figures["perplexity"]
    if trial := record["trial"]:
        yield "perplexity_ratio", _ratio(trial, trial["candidate"] - trial["champion"])
        yield "perplexity_ratio_high", _ratio(trial, trial["high"])
    if old := record["old_text"]:
        yield "forgetting_low", _ratio(old, old["low"])


def _ratio(figures: Mapping[str, Any], nats_per_byte: float) -> float:
    return math.exp(nats_per_byte * figures["champion_bytes_per_token"])


def _stored(client: MlflowClient, run_id: str, path: str) -> Any:
    """Return the JSON file of a run, by the address of MLflow in the environment; None if it is gone."""
    try:
        return load_dict(f"{client.get_run(run_id).info.artifact_uri}/{path}")
    except (MlflowException, OSError):
        return None
