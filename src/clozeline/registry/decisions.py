"""Release decisions: the gates of a package, the record beside its version, and what the records tell later.

They tell the history of a package, whose data are still needed, and which versions come from a text that was forgotten.
"""

import math
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlflow.artifacts import download_artifacts, list_artifacts
from mlflow.entities import Run
from pydantic import BaseModel, ConfigDict
from pydantic.dataclasses import dataclass as pydantic_dataclass

from clozeline.params.delivery import ReleaseParams
from clozeline.records import evaluation, package_metrics
from clozeline.records.finetune.task_metrics import Headline, TaskMetrics
from clozeline.records.package import Precision, package_sha256, read_manifest
from clozeline.records.record import NATS_PER_BYTE, Limit, PairedFigures
from clozeline.registry import models, versions
from clozeline.registry.changes import SUFFIX, ChangeList
from clozeline.tracking import addresses
from clozeline.tracking.mlflow import answering, every, prepare

_NO_DUPLICATES = ", without near-duplicates of training items"
# Name of the gate that an encoder fails if its training was too short.
UNIGRAM_RATIO = "unigram_ratio"
# `held`: a person has to decide. `kept`: the champion stays; no action is needed.
Outcome = Literal["promoted", "unchanged", "refused", "held", "kept"]
_LATENCY = "latency/"
# Tag of a version: paths of its lineage that were removed, because a forgotten text was in them.
_PATHS = "clozeline.forgotten"
# Tag of a version: `true` if a forgotten text was in its clean text.
_TRAINED = "clozeline.trained_on_forgotten"


@pydantic_dataclass(frozen=True)
class Gate(Limit):
    """A limit that a version has to pass before its release."""

    # Outcome for a version that fails: refused; held until a person approves; or only not promoted.
    otherwise: Literal["refused", "held", "kept"] = "refused"


def gates(params: ReleaseParams, candidate: package_metrics.PackageMetrics, trial: PairedFigures | None) -> list[Gate]:
    """Return the gates of a candidate.

    `trial` has the figures of candidate and champion on the same items. It is None if there is nothing to compare with:
    the first version, or a champion that cannot be measured on these items.
    A package without INT8 (no scheme passed at export) has no agreement gate. A published model has only that one.
    """
    agreement = candidate.export.int8_agreement
    checked = [] if agreement is None else [Gate("int8_agreement", agreement, "at least", params.min_int8_agreement)]
    quality = candidate.quality
    if isinstance(quality, evaluation.EncoderMetrics):
        ratio = quality.unigram_perplexity / quality.perplexity
        checked.append(Gate(UNIGRAM_RATIO, ratio, "at least", params.min_unigram_ratio))
    if params.max_contaminated_fraction is not None and quality is not None:
        found = quality.contaminated_fraction  # uncounted, it fails any limit below 1
        most = params.max_contaminated_fraction
        checked.append(Gate("contaminated_fraction", 1.0 if found is None else found, "at most", most))
    if trial is not None:
        checked += _against_champion(params, trial)
    elif isinstance(quality, TaskMetrics):
        checked += _better_than_baselines(params, quality.headline)
    return checked


def _against_champion(params: ReleaseParams, trial: PairedFigures) -> Iterator[Gate]:
    """Yield the gate of the figure itself, then that of the worse end of its interval, as `params.promote` asks."""
    if trial.metric == NATS_PER_BYTE:
        name, value, worse_end = "perplexity_ratio", *map(trial.as_perplexity_ratio, (trial.difference, trial.high))
        most = params.max_perplexity_ratio
        yield Gate(name, value, "at most", most)
        proof: dict[str, Gate] = {
            "when_better": Gate(f"{name}_high", worse_end, "below", 1.0, "kept"),
            "when_not_worse": Gate(f"{name}_high", worse_end, "at most", most, "held"),
        }
    else:
        name, least = f"{trial.metric}_delta", params.min_accuracy_delta
        yield Gate(name, trial.difference, "at least", least)
        proof = {
            "when_better": Gate(f"{name}_low", trial.low, "above", 0.0, "kept"),
            "when_not_worse": Gate(f"{name}_low", trial.low, "at least", least, "held"),
        }
    if params.promote in proof:
        yield proof[params.promote]


def forgetting(params: ReleaseParams, old_text: PairedFigures | None) -> list[Gate]:
    """Return the gate on the validation text of the champion: refuse what the interval shows to be forgotten.

    `old_text` is None unless the candidate continues from the champion.
    """
    if old_text is None:
        return []
    least = old_text.as_perplexity_ratio(old_text.low)
    return [Gate("forgetting_low", least, "at most", params.max_forgetting)]


def _better_than_baselines(params: ReleaseParams, headline: Headline) -> Iterator[Gate]:
    """Yield the gates of a task that has no champion to compare with. A NaN baseline sets no gate.

    The whole interval has to be above the limit. The lead over the baseline is paired by test item, so its interval is
    narrower than that of the figure, which decides for kinds that do not measure the lead. Test items that are
    near-duplicates of training items do not count.
    """
    top = headline.judged
    limits = [(top.metric, "trivial answer", top.low, top.trivial_value)]
    if params.beat_baseline and not math.isnan(top.baseline_value):
        limits.append(
            (f"{top.metric}_lead_low", "baseline", top.lead_low, 0.0)
            if top.lead_low is not None
            else (top.metric, "baseline", top.low, top.baseline_value)
        )
    for figure, name, given, limit in limits:
        if not math.isnan(limit):
            yield Gate(
                f"{figure} against the {name}{'' if top is headline else _NO_DUPLICATES}", given, "above", limit, "held"
            )


class Decision(BaseModel):
    """Release decision about one version, with its reasons."""

    model_config = ConfigDict(frozen=True)

    outcome: Outcome
    reason: str = ""  # why it is held, and what to do about it; or why the champion is kept
    model: str = ""
    version: str = ""
    served: Precision | None = None  # precision that is served by default
    champion_before: str | None = None
    # Figures of candidate and champion on the same items; None without a champion, or if it cannot answer them.
    trial: PairedFigures | None = None
    # Their figures on validation text that the champion had too; None unless the candidate continues from it.
    old_text: PairedFigures | None = None
    gates: tuple[Gate, ...] = ()
    prefect_flow_run_id: str = ""

    @property
    def is_new(self) -> bool:
        """Whether this is a new decision: false if the package is already the champion."""
        return self.outcome != "unchanged"

    @property
    def is_a_short_trial(self) -> bool:
        """Whether it is about a first encoder, refused only because its training was too short."""
        failed = {gate.name for gate in self.gates if not gate.is_passed}
        return self.outcome == "refused" and self.champion_before is None and failed == {UNIGRAM_RATIO}

    @property
    def lines(self) -> list[str]:
        """Lines of the flow's Markdown page."""
        title = f"# {self.model} version {self.version}: {self.outcome}"
        evidence = [str(figures) for figures in (self.trial, self.old_text) if figures]
        return [title, *filter(None, [self.reason]), *evidence, *(f"- {gate}" for gate in self.gates)]


@dataclass(frozen=True)
class Released:
    """A registered package."""

    version: models.Registered
    aliases: tuple[str, ...]  # aliases that the version holds now
    decision: Decision | None  # the newest decision; None: the release was cut off after registering the version
    latency: Mapping[str, float]  # figures of `inference.latency` on the machine that released it last


def released(tracking_uri: str, package: Path) -> Released | None:
    """Return the history of the package in this folder; None if it was never registered.

    Raises:
        TransientError: the registry does not answer.
        ArtifactError: the package, or the run that holds the version's evidence, is missing.
    """
    read_manifest(package)
    registry = versions.Registry.open(tracking_uri)
    version = registry.with_package(models.model_name(package.name), package_sha256(package))
    if version is None:
        return None
    run = registry.run_of(version)
    held = {alias: registry.at(version.name, alias) for alias in (models.CHAMPION, models.CANDIDATE, models.PREVIOUS)}
    metrics = run.data.metrics
    return Released(
        version=version,
        aliases=tuple(alias for alias, holder in held.items() if holder and holder.version == version.version),
        decision=newest_decision(version, run, tracking_uri),
        latency={key.removeprefix(_LATENCY): value for key, value in metrics.items() if key.startswith(_LATENCY)},
    )


def newest_decision(version: models.Registered, run: Run, tracking_uri: str) -> Decision | None:
    """Return the newest decision about `version`, whose evidence is in `run`; None if its release was cut off before.

    Raises the errors of `answering`.
    """
    decisions = addresses.present(f"{run.info.artifact_uri}/decisions", tracking_uri)
    with answering(tracking_uri, f"run of {version}"), tempfile.TemporaryDirectory() as folder:
        stored = list_artifacts(artifact_uri=decisions, tracking_uri=tracking_uri)
        newest = max((Path(file.path).name for file in stored), default=None)
        if newest is None:
            return None
        address = f"{decisions}/{newest}"
        file = Path(download_artifacts(artifact_uri=address, dst_path=folder, tracking_uri=tracking_uri))
        return Decision.model_validate_json(file.read_bytes())


def versions_in_use(tracking_uri: str) -> list[models.Registered]:
    """Return every version of our models that has an alias, or will have one when a killed change is finished.

    Raises:
        ArtifactError: a change names a version that is missing; or the server refuses the caller.
        TransientError: the registry does not answer.
    """
    found = []
    with answering(tracking_uri, "models"):
        client = prepare(tracking_uri)
        registry, changes = versions.Registry(client, tracking_uri), ChangeList(client)
        for model in every(client.search_registered_models, f"name LIKE '{models.MODEL_PREFIX}%'"):
            pending = changes.read(model.name).pending
            numbers = {*map(str, model.aliases.values())}.union(*((one.before, one.after) for one in pending))
            found += [registry.version(model.name, number) for number in sorted(numbers - {""})]
    return found


def forgotten_paths(version: models.Registered, tracking_uri: str) -> frozenset[str]:
    """Return the paths of the lineage of `version` that were removed. Raises the errors of `answering`."""
    with answering(tracking_uri, str(version)):
        tags = prepare(tracking_uri).get_model_version(version.name, version.version).tags
    return frozenset(tags.get(_PATHS, "").split())


def mark(version: models.Registered, paths: Collection[str], tracking_uri: str, *, was_trained_on: bool) -> None:
    """Add `paths` to the mark of `version`. Raises the errors of `answering`."""
    known = forgotten_paths(version, tracking_uri)
    registry = versions.Registry.open(tracking_uri)
    registry.tag(version, _PATHS, " ".join(sorted(known.union(paths))))
    if was_trained_on:
        registry.tag(version, _TRAINED, "true")


def every_version(tracking_uri: str) -> list[tuple[models.Registered, tuple[str, ...]]]:
    """Return every version of our models, with its aliases. Raises the errors of `answering`."""
    found = []
    with answering(tracking_uri, "models"):
        client = prepare(tracking_uri)
        registry = versions.Registry(client, tracking_uri)
        for model in every(client.search_registered_models, f"name LIKE '{models.MODEL_PREFIX}%'"):
            if model.name.endswith(SUFFIX):
                continue
            for version in every(client.search_model_versions, f"name = '{model.name}'"):
                number = str(version.version)
                aliases = tuple(sorted(alias for alias, other in model.aliases.items() if str(other) == number))
                found.append((registry.version(model.name, number), aliases))
    return found
