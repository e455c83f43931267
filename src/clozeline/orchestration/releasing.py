"""The steps of a release: what each package must show, which version it is, and what is decided about it."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from prefect import runtime

from clozeline.artifacts.lock import Lock
from clozeline.artifacts.manifest import Manifest, Precision, read_manifest
from clozeline.artifacts.package_metrics import MetricPaths, PackageMetrics
from clozeline.errors import ArtifactError, GateError
from clozeline.inference.latency import Latency
from clozeline.machine.processor import processor
from clozeline.orchestration.git_state import git_tags
from clozeline.params import ReleaseParams
from clozeline.registry import CANDIDATE, CHAMPION, model_name
from clozeline.registry.gates import Gate, gates
from clozeline.registry.measured_on import MeasuredOn
from clozeline.registry.publishing import LOCK, METRICS, Evidence, Publisher, example_texts
from clozeline.registry.versions import Registered
from clozeline.versions.objects import Objects
from clozeline.workspace import Workspace

Outcome = Literal["promoted", "unchanged", "refused", "held"]


@dataclass(frozen=True)
class Decision:
    """What became of one version, and why."""

    outcome: Outcome
    gates: tuple[Gate, ...] = ()
    reason: str = ""
    """Why it is held, and what to do about it."""

    @property
    def is_new(self) -> bool:
        """Whether there was anything to decide."""
        return self.outcome != "unchanged"

    def lines_of(self, version: Registered) -> list[str]:
        """For the page of the flow."""
        return [f"# {version}: {self.outcome}", *filter(None, [self.reason]), *(f"- {gate}" for gate in self.gates)]


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
    latency: Latency
    """On this machine."""
    reason: str = ""
    """Why it is held, and what to do about it."""
    precision: Precision = "int8"
    """Of the graph that answers who asks for none."""
    why_fp32: str = ""

    @classmethod
    def of(cls, package: str, version: Registered, decision: Decision, manifest: Manifest, measured: Latency) -> Self:
        precision = version.served or manifest.served
        return cls(
            package=package,
            name=version.name,
            version=version.version,
            outcome=decision.outcome,
            gates=decision.gates,
            latency=measured,
            reason=decision.reason,
            precision=precision,
            why_fp32=f"{version}: {_why_fp32(manifest, measured)}" if precision == "fp32" else "",
        )

    @property
    def lines(self) -> list[str]:
        """For the log of the flow."""
        told = f"{self.name} version {self.version}: {self.outcome}"
        return [told, *map(str, self.gates), *filter(None, [self.reason, self.why_fp32])]


class ReleaseRefusedError(GateError):
    """A candidate is not good enough."""

    releases: tuple[Release, ...] = ()
    """What became of every package, the refused ones too."""

    @classmethod
    def of(cls, releases: Sequence[Release]) -> Self:
        refused = [made for made in releases if made.outcome == "refused"]
        failed = [(made, gate) for made in refused for gate in made.gates if not gate.is_passed]
        refusal = cls(
            f"not good enough to be released: {', '.join(made.name for made in refused)}",
            given="; ".join(f"{made.name} version {made.version}: {gate}" for made, gate in failed),
            expected="every gate of `release` in params.yaml passed",
            do=f"train longer or better, or change the limit; meanwhile it is models:/{refused[0].name}@{CANDIDATE}",
        )
        refusal.releases = tuple(releases)
        return refusal


@dataclass(frozen=True)
class Evidenced:
    """PackageMetrics, and what they were measured on."""

    figures: PackageMetrics
    measured_on: MeasuredOn

    @classmethod
    def read(cls, folder: Path, paths: MetricPaths) -> Self:
        """Of a project, or of what was stored with a version."""
        lock = Lock.read(folder / LOCK)
        return cls(PackageMetrics.read(folder / METRICS, paths), MeasuredOn.of(lock, paths))


def require_locked(workspace: Workspace, package: str) -> None:
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


def register(
    publisher: Publisher,
    workspace: Workspace,
    paths: MetricPaths,
    folder: Path,
    measured: Latency,
    params: ReleaseParams,
) -> Registered:
    """The version of the package in `folder`, which answers as anyone would ask it, and the graph that it serves."""
    manifest = read_manifest(folder)
    version = publisher.publish(folder, model_name(folder.name), _evidence(workspace.root, paths))
    if version.served is None or version.served_on != processor():
        chosen = faster(manifest, measured, params.min_int8_speedup)
        version = publisher.registry.serve(version, chosen, processor())
    publisher.check(version, example_texts(manifest))
    times = {key: value for key, value in asdict(measured).items() if value is not None}
    publisher.measured(version, {f"latency/{key}": float(value) for key, value in times.items()})
    return version


def _evidence(root: Path, paths: MetricPaths) -> Evidence:
    metrics = {f"{METRICS}/{path}": root / "metrics" / path for path in (paths.quality, paths.export)}
    return Evidence(
        files={LOCK: root / LOCK, "params.yaml": root / "params.yaml", **metrics},
        tags={**git_tags(root), "prefect.flow_run_id": str(runtime.flow_run.id)},
    )


def faster(manifest: Manifest, measured: Latency, min_speedup: float) -> Precision:
    """The graph that is to answer on a processor like this one.

    A clock has a say only here: what `dvc repro` makes is the same on every machine.
    """
    speedup = measured.int8_speedup
    return "fp32" if speedup is not None and speedup < min_speedup else manifest.served


def _why_fp32(manifest: Manifest, measured: Latency) -> str:
    if manifest.served == "fp32":
        return f"none of {len(manifest.ladder)} INT8 schemes passed `export.gates`; manifest.json has their figures"
    return (
        "INT8 was slower than fp32 when it was released first on this processor"
        f" (here: {measured}; fp32's time is {measured.int8_speedup or 0:.2f} times INT8's where it is least)"
    )


def decide(
    publisher: Publisher,
    version: Registered,
    params: ReleaseParams,
    paths: MetricPaths,
    candidate: Evidenced,
    new_text: bool,
) -> Decision:
    """Gate `version`, move the aliases as that says, and keep the decision beside the version."""
    registry = publisher.registry
    champion = registry.at(version.name, CHAMPION)
    if champion == version:
        return Decision("unchanged")
    against, differences = None, []
    if champion:
        with publisher.evidence(champion) as evidence:
            against = Evidenced.read(evidence, paths)
        differences = candidate.measured_on.differences(against.measured_on)
    checked = gates(params, candidate.figures, against.figures if against and not differences else None)
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
    decision = Decision(outcome, tuple(checked), reason)
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
    decision: Decision,
    differences: Sequence[str],
) -> None:
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
