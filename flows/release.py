"""From `dist/` to the registry: check, register, gate, promote; everything may be repeated without effect.

An effect on the outside world, and so no DVC stage: a run-cache hit would skip it.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from prefect import flow, get_run_logger, runtime, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from clozeline.errors import ArtifactError, GateError
from clozeline.inference import latency
from clozeline.inference.manifest import read_manifest, verify
from clozeline.lineage.lock import Lock
from clozeline.lineage.objects import Objects
from clozeline.params import Params, read_params
from clozeline.registry import CANDIDATE, CHAMPION, model_name
from clozeline.registry.figures import Figures, MetricPaths
from clozeline.registry.gates import Gate, gates
from clozeline.registry.publishing import LOCK, METRICS, Evidence, Publisher, example_texts
from clozeline.registry.versions import Registered
from clozeline.workspace import Workspace, set_defaults, tracking_uri
from flows.git_state import git_tags
from flows.plain_errors import tell_errors_plainly
from flows.run_lock import run_lock

Outcome = Literal["promoted", "unchanged", "refused", "held"]


@dataclass(frozen=True)
class Release:
    """What became of one package."""

    package: str
    name: str
    """Of the registered model."""
    version: str
    outcome: Outcome
    """`unchanged`: it was the champion already. `held`: a person rolled it back, and a person may put it back."""
    gates: tuple[Gate, ...]
    latency: latency.Latency
    """On this machine."""


class ReleaseRefusedError(GateError):
    """A candidate is not good enough."""

    releases: tuple[Release, ...] = ()
    """What became of every package, the refused ones too."""


@flow(name="release", validate_parameters=False)
def release(project: Path = Path()) -> list[Release]:
    """Release every package that params.yaml exports.

    Raises:
        ArtifactError: a package or a metric file is missing or damaged; what is broken gets no alias.
        ReleaseRefusedError: a candidate is not good enough; it stays the candidate, and the champion the champion.
        TransientError: another run is at work here, or the registry does not answer.
    """
    tell_errors_plainly()
    workspace = Workspace(project.resolve())
    set_defaults(workspace)
    params = read_params(workspace.root / "params.yaml")
    with run_lock(workspace.lock_file):
        publisher = Publisher(tracking_uri(workspace))
        releases = [
            release_package.with_options(name=f"release:{package}", task_run_name=package)(
                publisher, workspace, params, package
            )
            for package in params.export.models
        ]
    refused = [made for made in releases if made.outcome == "refused"]
    if refused:
        raise _refusal(refused, releases)
    return releases


@task(cache_policy=NO_CACHE, persist_result=False)
def release_package(publisher: Publisher, workspace: Workspace, params: Params, package: str) -> Release:
    """Release `dist/<package>`."""
    folder = workspace.root / "dist" / package
    manifest = read_manifest(folder)
    verify(folder, manifest)
    _require_locked(workspace, package)
    measured = latency.measure(folder)
    paths = MetricPaths.of(package, params.export.models[package])
    figures = Figures.read(workspace.root / "metrics", paths)
    version = publisher.publish(folder, model_name(package), _evidence(workspace, paths))
    publisher.check(version, example_texts(manifest))
    publisher.measured(version, {f"latency/{key}": float(value) for key, value in asdict(measured).items()})
    outcome, passed = _decide(publisher, version, params, paths, figures)
    get_run_logger().info("%s", "\n".join([f"{version}: {outcome}", *map(str, passed)]))
    return Release(package, version.name, version.version, outcome, tuple(passed), measured)


def _require_locked(workspace: Workspace, package: str) -> None:
    """A package that dvc.lock does not know would have another model's lineage."""
    path = f"dist/{package}"
    maker = Lock.read(workspace.root / LOCK).maker_of(path)
    locked = next((out.md5 for out in maker[1].outs if out.path == path), None) if maker else None
    with Objects.open(workspace.root) as objects:
        given = objects.md5_of(workspace.root / path)
    if given != locked:
        raise ArtifactError(
            f"{path} is not what {LOCK} says",
            given=f"md5 {given}",
            expected=f"md5 {locked}" if locked else f"an output of a stage in {LOCK}",
            do="run `clozeline run` (or `dvc repro`), which makes both anew",
        )


def _decide(
    publisher: Publisher, version: Registered, params: Params, paths: MetricPaths, figures: Figures
) -> tuple[Outcome, list[Gate]]:
    registry = publisher.registry
    champion = registry.at(version.name, CHAMPION)
    if champion == version:
        return "unchanged", []
    against = None
    if champion:
        with publisher.evidence(champion) as evidence:
            against = Figures.read(evidence / METRICS, paths)
    checked = gates(params.release, figures, against)
    if version.was_rolled_back:
        outcome: Outcome = "held"
    elif all(gate.is_passed for gate in checked):
        outcome = "promoted"
    else:
        outcome = "refused"
    if outcome != "held":
        registry.nominate(version)
    if outcome == "promoted":
        registry.promote(version)
    _record(publisher, version, champion, outcome, checked)
    return outcome, checked


def _record(
    publisher: Publisher, version: Registered, champion: Registered | None, outcome: Outcome, checked: Sequence[Gate]
) -> None:
    """The decision with its numbers, where a person looks for it: beside the version, and on the flow's page."""
    decision = {
        "outcome": outcome,
        "model": version.name,
        "version": version.version,
        "champion_before": champion.version if champion else None,
        "gates": [gate.as_record() for gate in checked],
        "prefect_flow_run_id": str(runtime.flow_run.id),
    }
    publisher.record(version, decision, f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json")
    lines = [f"# {version}: {outcome}", *(f"- {gate}" for gate in checked)]
    create_markdown_artifact("\n".join(lines), key=f"decision-{version.name}")


def _evidence(workspace: Workspace, paths: MetricPaths) -> Evidence:
    root = workspace.root
    metrics = {f"{METRICS}/{path}": root / "metrics" / path for path in (paths.quality, paths.export)}
    return Evidence(
        files={LOCK: root / LOCK, "params.yaml": root / "params.yaml", **metrics},
        tags={**git_tags(root), "prefect.flow_run_id": str(runtime.flow_run.id)},
    )


def _refusal(refused: Sequence[Release], releases: Sequence[Release]) -> ReleaseRefusedError:
    failed = [
        f"{made.name} version {made.version}: {gate}" for made in refused for gate in made.gates if not gate.is_passed
    ]
    names = ", ".join(made.name for made in refused)
    refusal = ReleaseRefusedError(
        f"not good enough to be released: {names}",
        given="; ".join(failed),
        expected="every gate of `release` in params.yaml passed",
        do=f"train longer or better, or change the limit; meanwhile it is models:/{refused[0].name}@{CANDIDATE}",
    )
    refusal.releases = tuple(releases)
    return refusal
