"""From `dist/` to the registry: check, register, gate, promote; everything may be repeated without effect.

An effect on the outside world, and so no DVC stage: a run-cache hit would skip it.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from prefect import flow, get_run_logger, runtime, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from clozeline.artifacts.lock import Lock
from clozeline.artifacts.manifest import Manifest, Precision, read_manifest, verify
from clozeline.artifacts.package_metrics import MetricPaths, PackageMetrics
from clozeline.errors import ArtifactError, GateError
from clozeline.inference import latency
from clozeline.lineage.objects import Objects
from clozeline.machine.processor import processor
from clozeline.params import Params, read_params
from clozeline.registry import CANDIDATE, CHAMPION, model_name
from clozeline.registry.gates import Gate, gates
from clozeline.registry.measured_on import MeasuredOn
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
    """`unchanged`: it was the champion already. `held`: only a person may make it the champion, for `reason`."""
    gates: tuple[Gate, ...]
    latency: latency.Latency
    """On this machine."""
    reason: str = ""
    """Why it is held, and what to do about it."""
    precision: Precision = "int8"
    """Of the graph that answers who asks for none."""
    why_fp32: str = ""


class ReleaseRefusedError(GateError):
    """A candidate is not good enough."""

    releases: tuple[Release, ...] = ()
    """What became of every package, the refused ones too."""


@flow(name="release", validate_parameters=False)
def release(project: Path = Path(), new_text: bool = False) -> list[Release]:
    """Release every package that params.yaml exports.

    A candidate that was measured on other text than the champion cannot be compared with it: it is held, or with
    `new_text` promoted on its other gates alone.

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
                publisher, workspace, params, package, new_text
            )
            for package in params.export.models
        ]
    refused = [made for made in releases if made.outcome == "refused"]
    if refused:
        raise _refusal(refused, releases)
    return releases


@task(cache_policy=NO_CACHE, persist_result=False)
def release_package(
    publisher: Publisher, workspace: Workspace, params: Params, package: str, new_text: bool
) -> Release:
    """Release `dist/<package>`."""
    folder = workspace.root / "dist" / package
    manifest = read_manifest(folder)
    verify(folder, manifest)
    _require_locked(workspace, package)
    measured = latency.measure(folder)
    paths = MetricPaths.of(package, params.export.models[package])
    candidate = _Evidenced.read(workspace.root, paths)
    version = publisher.publish(folder, model_name(package), _evidence(workspace, paths))
    if version.served is None or version.served_on != processor():
        chosen = faster(manifest, measured, params.release.min_int8_speedup)
        version = publisher.registry.serve(version, chosen, processor())
    publisher.check(version, example_texts(manifest))
    times = {key: value for key, value in asdict(measured).items() if value is not None}
    publisher.measured(version, {f"latency/{key}": float(value) for key, value in times.items()})
    decided = _decide(publisher, version, params, paths, candidate, new_text)
    precision = version.served or manifest.served
    why_fp32 = f"{version}: {_why_fp32(manifest, measured)}" if precision == "fp32" else ""
    lines = [f"{version}: {decided.outcome}", *map(str, decided.gates), *filter(None, [decided.reason, why_fp32])]
    get_run_logger().info("%s", "\n".join(lines))
    return Release(
        package=package,
        name=version.name,
        version=version.version,
        outcome=decided.outcome,
        gates=decided.gates,
        latency=measured,
        reason=decided.reason,
        precision=precision,
        why_fp32=why_fp32,
    )


def faster(manifest: Manifest, measured: latency.Latency, min_speedup: float) -> Precision:
    """The graph that is to answer on a processor like this one.

    A clock has a say only here: what `dvc repro` makes is the same on every machine.
    """
    speedup = measured.int8_speedup
    return "fp32" if speedup is not None and speedup < min_speedup else manifest.served


def _why_fp32(manifest: Manifest, measured: latency.Latency) -> str:
    if manifest.served == "fp32":
        return f"none of {len(manifest.ladder)} INT8 schemes passed `export.gates`; manifest.json has their figures"
    return (
        "INT8 was slower than fp32 when it was released first on this processor"
        f" (here: {measured}; fp32's time is {measured.int8_speedup or 0:.2f} times INT8's where it is least)"
    )


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


@dataclass(frozen=True)
class _Evidenced:
    """PackageMetrics, and what they were measured on."""

    figures: PackageMetrics
    measured_on: MeasuredOn

    @classmethod
    def read(cls, folder: Path, paths: MetricPaths) -> Self:
        """Of a project, or of what was stored with a version."""
        lock = Lock.read(folder / LOCK)
        return cls(PackageMetrics.read(folder / METRICS, paths), MeasuredOn.of(lock, paths))


@dataclass(frozen=True)
class _Decision:
    outcome: Outcome
    gates: tuple[Gate, ...] = ()
    reason: str = ""


def _decide(
    publisher: Publisher, version: Registered, params: Params, paths: MetricPaths, candidate: _Evidenced, new_text: bool
) -> _Decision:
    registry = publisher.registry
    champion = registry.at(version.name, CHAMPION)
    if champion == version:
        return _Decision("unchanged")
    against, differences = None, []
    if champion:
        with publisher.evidence(champion) as evidence:
            against = _Evidenced.read(evidence, paths)
        differences = candidate.measured_on.differences(against.measured_on)
    checked = gates(params.release, candidate.figures, against.figures if against and not differences else None)
    reason = _reason_to_hold(version, [] if new_text else differences)
    outcome: Outcome = "promoted"
    if version.was_rolled_back:
        outcome = "held"
    elif not all(gate.is_passed for gate in checked):
        outcome, reason = "refused", ""
    elif reason:
        outcome = "held"
    if not version.was_rolled_back:
        registry.nominate(version)
    if outcome == "promoted":
        registry.promote(version)
    decision = _Decision(outcome, tuple(checked), reason)
    _record(publisher, version, champion, decision, differences)
    return decision


def _reason_to_hold(version: Registered, differences: Sequence[str]) -> str:
    if version.was_rolled_back:
        return f"a person rolled {version} back: `clozeline rollback {version.name} --undo` makes it the champion again"
    if differences:
        return (
            f"{version} was measured on other text than the champion, so the two do not compare"
            f" ({'; '.join(differences)}): `clozeline release --new-text` promotes it without the comparison"
        )
    return ""


def _record(
    publisher: Publisher,
    version: Registered,
    champion: Registered | None,
    decision: _Decision,
    differences: Sequence[str],
) -> None:
    """The decision with its numbers, where a person looks for it: beside the version, and on the flow's page."""
    record = {
        "outcome": decision.outcome,
        "reason": decision.reason,
        "model": version.name,
        "version": version.version,
        "served": version.served,
        "champion_before": champion.version if champion else None,
        "not_compared_with_champion": list(differences),
        "gates": [gate.as_record() for gate in decision.gates],
        "prefect_flow_run_id": str(runtime.flow_run.id),
    }
    publisher.record(version, record, f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json")
    lines = [f"# {version}: {decision.outcome}", decision.reason, *(f"- {gate}" for gate in decision.gates)]
    create_markdown_artifact("\n".join(filter(None, lines)), key=f"decision-{version.name}")


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
