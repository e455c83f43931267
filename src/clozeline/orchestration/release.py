"""The steps of a release: check a package, register it as a version, pass it through the gates, decide."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Self

from prefect import runtime

from clozeline.inference.latency import Latency, as_fast
from clozeline.orchestration.checks import git_tags, identity_of
from clozeline.orchestration.trials import PackageTrials, Tried
from clozeline.params.project import Params
from clozeline.records.package import Manifest, Precision, read_manifest
from clozeline.records.record import Lock
from clozeline.registry.changes import ChampionChangedError
from clozeline.registry.decisions import Decision, Gate, Outcome, forgetting, gates
from clozeline.registry.lineage import release_section
from clozeline.registry.models import CANDIDATE, SIGNATURE, Registered, model_name
from clozeline.registry.publishing import LOCK, METRICS, Evidence, Publisher, example_texts
from clozeline.registry.signature import sign, signing_key
from clozeline.registry.trained import TrainedEncoder
from clozeline.system.errors import ArtifactError, GateError, TransientError
from clozeline.system.machine import processor
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.tracking.delivery import WORKSPACE
from clozeline.tracking.mlflow import require_answer
from clozeline.tracking.outbox import Outbox
from clozeline.versions.objects import Objects

_MOST_DECISIONS = 5
_BETTER = "train longer or better (or import another model or commit), or change the limit"


class Release(Decision):
    """The decision about one package, with what was measured on this machine."""

    package: str
    latency: Latency
    why_fp32: str = ""

    @classmethod
    def of(cls, package: str, version: Registered, decision: Decision, manifest: Manifest, measured: Latency) -> Self:
        precision = version.served or manifest.served
        why_fp32 = f"{version}: {_why_fp32(manifest, version)}" if precision == "fp32" else ""
        told = dict(decision) | {"served": precision}
        return cls.model_construct(package=package, latency=measured, why_fp32=why_fp32, **told)

    @property
    def log_lines(self) -> list[str]:
        """Lines for the log of the flow."""
        headline = f"{self.model} version {self.version}: {self.outcome}"
        evidence = [str(self.trial)] if self.trial else []
        speed = f"measured now: {self.latency}"
        return [headline, *evidence, *map(str, self.gates), *filter(None, [self.reason, self.why_fp32]), speed]


class ReleaseRefusedError(GateError):
    """A candidate failed a gate."""

    releases: tuple[Release, ...] = ()  # results of all packages, including the refused ones

    @classmethod
    def of(cls, releases: Sequence[Release]) -> Self:
        refused = [made for made in releases if made.outcome == "refused"]
        failed = [(made, gate) for made in refused for gate in made.gates if not gate.is_passed]
        refusal = cls(
            f"not good enough to be released: {', '.join(made.model for made in refused)}",
            given="; ".join(f"{made.model} version {made.version}: {gate}" for made, gate in failed),
            do=f"{_BETTER}; until then it is models:/{refused[0].model}@{CANDIDATE}",
        )
        refusal.releases = tuple(releases)
        return refusal


class HeldError(GateError):
    """A version waits for the decision of a person."""

    @classmethod
    def of(cls, held: Sequence[Release]) -> Self:
        return cls(
            f"a person has to decide about {', '.join(made.model for made in held)}",
            given="; ".join(made.reason for made in held),
            do="look at the evidence in the report, then `clozeline release --accept`, or leave the champion as it is",
        )


def require_registry(workspace: Workspace, params: Params) -> None:
    """Check that the registry answers, before anything is released.

    Raises:
        ArtifactError: its server refuses the caller, or its local database is damaged.
        TransientError: it does not answer.
    """
    address = tracking_uri(workspace)
    try:
        require_answer(address)
    except TransientError as error:
        packages = ", ".join(f"dist/{package}" for package in params.packages)
        records = f"; the records of earlier runs in {workspace.outbox}" if Outbox(workspace.outbox).runs() else ""
        raise TransientError(
            f"MLflow at {address} does not answer, so nothing was released (waiting: {packages}{records})",
            do="start it, or correct MLFLOW_TRACKING_URI; then finish with `clozeline release`",
        ) from error


def require_locked(workspace: Workspace, package: str) -> None:
    """Check that the package has the hash in dvc.lock; otherwise its recorded lineage would be another model's.

    Raises:
        ArtifactError: it differs, or dvc.lock does not list it.
    """
    path = f"dist/{package}"
    maker = Lock.read(workspace.root / LOCK).maker_of(path)
    locked = next((out.md5 for out in maker[1].outs if out.path == path), None) if maker else None
    with Objects.open(workspace.root) as objects:
        given = objects.md5_of(workspace.root / path)
    if given != locked:
        problem = f"{path} differs from its hash in {LOCK}: md5 {given}, not {locked or 'listed'}"
        raise ArtifactError(problem, do="run `clozeline run` (or `dvc repro`), which updates both")


def register(
    publisher: Publisher, tried: PackageTrials, measured: Latency, trained: TrainedEncoder | None
) -> Registered:
    """Register the package, choose the precision to serve by default, sign it if there is a key, and check
    that the version predicts.

    Each release chooses the precision again, so that no noisy measurement decides for ever. Rounds that disagree decide
    only if no release measured the version on this processor before. `trained`: the encoder to store with the version.

    Raises:
        ArtifactError: the version does not load, or does not answer every text.
    """
    root, folder, paths = tried.workspace.root, tried.folder, tried.metric_paths
    manifest = read_manifest(folder)
    metrics = {f"{METRICS}/{path}": root / "metrics" / path for path in (paths.quality, paths.export) if path}
    flow_run = {WORKSPACE: identity_of(tried.workspace), "prefect.flow_run_id": str(runtime.flow_run.id)}
    evidence = Evidence(
        files={LOCK: root / LOCK, "params.yaml": root / "params.yaml", **metrics},
        trained=trained,
        tags={**git_tags(root), **flow_run},
        card=release_section(folder.name, tried.figures.quality, Lock.read(root / LOCK)),
    )
    version = publisher.publish(folder, model_name(folder.name), evidence)
    if measured.is_steady or version.served is None or version.served_on != processor():
        chosen = faster(manifest, measured, tried.params.release.min_int8_speedup)
        version = publisher.registry.serve(version, chosen, processor(), measured.int8_speedup)
    if key := signing_key():
        publisher.registry.tag(version, SIGNATURE, sign(folder, key))
    publisher.check(version, example_texts(manifest))
    times = {key: value for key, value in asdict(measured).items() if value is not None}
    publisher.measured(version, {f"latency/{key}": float(value) for key, value in times.items()})
    return version


def faster(manifest: Manifest, measured: Latency, min_speedup: float) -> Precision:
    """Return the precision to serve by default on a processor like this one.

    Timings decide only here, because the outputs of `dvc repro` must be the same on every machine.
    """
    speedup = measured.int8_speedup
    return "fp32" if speedup is not None and speedup < min_speedup else manifest.served


def _why_fp32(manifest: Manifest, version: Registered) -> str:
    if manifest.served == "fp32":
        return f"none of {len(manifest.ladder)} INT8 schemes passed `export.gates`; manifest.json has their figures"
    return f"{as_fast(version.int8_speedup)}, measured by a release on this processor"


def decide(publisher: Publisher, version: Registered, trials: PackageTrials) -> Decision:
    """Pass `version` through the gates, move the aliases accordingly, and store the decision beside the version.

    If someone else changes the champion meanwhile, it is decided again, against the new one.

    Raises:
        ChampionChangedError: that happened again and again.
    """
    for _ in range(_MOST_DECISIONS - 1):
        with suppress(ChampionChangedError):
            return _decide(publisher, version, trials)
    return _decide(publisher, version, trials)


def _decide(publisher: Publisher, version: Registered, trials: PackageTrials) -> Decision:
    registry, params = publisher.registry, trials.params.release
    champion = registry.settle(version.name)
    if champion == version:
        return Decision(outcome="unchanged", model=version.name, version=version.version)
    tried = trials.against(champion) if champion else Tried()
    on_old = trials.on_old_text(champion) if champion else Tried()
    checked = [*gates(params, trials.figures, tried.figures), *forgetting(params, on_old.figures)]
    never = ["release.promote is `never`"] if champion and params.promote == "never" else []
    doubts = [*never, *(one.why_not for one in (tried, on_old) if one.why_not)]
    outcome, reason = _outcome(version, checked, doubts, trials.accept_held)
    decision = Decision(
        outcome=outcome,
        reason=reason,
        model=version.name,
        version=version.version,
        served=version.served,
        champion_before=champion.version if champion else None,
        trial=tried.figures,
        old_text=on_old.figures,
        gates=tuple(checked),
        prefect_flow_run_id=str(runtime.flow_run.id),
    )
    # First: a release that is killed later is decided again, and no champion lacks its record.
    record = publisher.record(version, decision, f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json")
    if not version.was_rolled_back:
        registry.nominate(version)
    if outcome == "promoted":
        overruled = [*(str(gate) for gate in checked if not gate.is_passed), *doubts]
        why = f"accepted by hand (--accept): {'; '.join(overruled)}" if overruled else "every gate passed"
        registry.promote(version, replacing=champion.version if champion else None, why=why, evidence=record)
    return decision


def _outcome(version: Registered, gates: Sequence[Gate], doubts: Sequence[str], accepts: bool) -> tuple[Outcome, str]:
    """Return the outcome and its reason. A person overrules every gate but those that refuse."""
    wrong = [gate for gate in gates if not gate.is_passed]
    failed = {end: [str(gate) for gate in wrong if gate.otherwise == end] for end in ("refused", "held", "kept")}
    if version.was_rolled_back:
        return "held", f"{version} was rolled back: `clozeline rollback {version.name} --undo` makes it champion again"
    if failed["refused"]:
        return "refused", f"{version}: {'; '.join(failed['refused'])}: {_BETTER}"
    accept = "`clozeline release --accept` makes it the champion anyway"
    if not accepts and (held := [*failed["held"], *doubts]):
        return "held", f"{version}: {'; '.join(held)}: {accept}"
    if not accepts and failed["kept"]:
        return "kept", f"{version}: {'; '.join(failed['kept'])}: the champion stays, unless {accept}"
    return "promoted", ""
