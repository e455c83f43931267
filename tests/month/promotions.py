"""Changes of champions as the registry shows them, and whether the evidence of each justifies it."""

import json
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mlflow.artifacts import load_dict
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

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
