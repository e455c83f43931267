"""From `dist/` to the registry: check, register, gate, promote. Running it again is safe.

A release acts on the outside world, so it is not a DVC stage: a run-cache hit would skip it.
"""

from pathlib import Path

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact

from clozeline.inference import latency
from clozeline.orchestration import checks, prefect_adapter, trials
from clozeline.orchestration import release as steps
from clozeline.orchestration.release import Release, ReleaseRefusedError
from clozeline.params.project import Params
from clozeline.params.reading import read_params
from clozeline.records.package import read_manifest, verify
from clozeline.registry.publishing import Publisher
from clozeline.system.workspace import Workspace, run_lock, set_defaults, tracking_uri
from clozeline.tracking.runs import deliver_waiting


@flow(name="release", validate_parameters=False)
def release(
    project: Path = Path(), accept_held: bool = False, waits: bool = False, trial: bool = False, only: str | None = None
) -> list[Release]:
    """Release every package that params.yaml exports or imports; with `only`, that one.

    Candidate and champion are measured on the same validation text or test items, and `release.promote` sets the
    condition on the interval of the difference. A candidate is held for a person to decide if the champion cannot
    answer the items, the items are too few to tell, or a task's first version does not beat the simple method (without
    `release.beat_baseline`, the trivial answer). `accept_held` promotes it if it passes the other gates.

    With `waits`, a registry that does not answer is asked again for 13 minutes, as a scheduled run needs it; without,
    a person learns it at once, and which command finishes the release. With `trial`, a first encoder whose training was
    too short for a release is no error.

    Raises:
        ArtifactError: a package or a metric file is missing or damaged; a broken package gets no alias.
        ReleaseRefusedError: a candidate failed a gate; it stays the candidate, and the champion stays the champion.
        TransientError: another run is active in this folder, or the registry does not answer.
    """
    prefect_adapter.tell_errors_plainly()
    workspace = Workspace(project.resolve())
    set_defaults(workspace)
    params = read_params(workspace.root / "params.yaml")
    opened = open_registry.with_options(**prefect_adapter.RETRIES) if waits else open_registry
    released = release_package.with_options(**prefect_adapter.RETRIES) if waits else release_package
    with run_lock(workspace.lock_file, flow_run=prefect_adapter.flow_run_id()):
        if not waits:
            steps.require_registry(workspace, params)
        publisher = opened(workspace)
        releases = [
            released.with_options(name=f"release:{package}", task_run_name=package)(
                publisher, workspace, params, package, accept_held
            )
            for package in params.packages
            if only in (None, package)
        ]
    if any(made.outcome == "refused" and not (trial and made.is_a_short_trial) for made in releases):
        raise ReleaseRefusedError.of(releases)
    return releases


@task(name="registry", **prefect_adapter.EFFECT)
def open_registry(workspace: Workspace) -> Publisher:
    """Deliver pending records of earlier runs to MLflow, and close the runs that killed releases left open."""
    address = tracking_uri(workspace)
    deliver_waiting(workspace.outbox, address)
    publisher = Publisher(address)
    publisher.close_killed(checks.identity_of(workspace))
    return publisher


@task(**prefect_adapter.EFFECT)
def release_package(
    publisher: Publisher, workspace: Workspace, params: Params, package: str, accept_held: bool
) -> Release:
    """Check `dist/<package>`, register it, and decide about it."""
    tried = trials.PackageTrials(workspace, params, package, accept_held)
    folder = tried.folder
    manifest = read_manifest(folder)
    verify(folder, manifest)
    steps.require_locked(workspace, package)
    trained = checks.trained_encoder(workspace, params) if package == params.encoder_package else None
    measured = latency.measure(folder)
    version = steps.register(publisher, tried, measured, trained)
    decision = steps.decide(publisher, version, tried)
    made = Release.of(package, version, decision, manifest, measured)
    get_run_logger().info("%s", "\n".join(made.log_lines))
    if decision.is_new:
        create_markdown_artifact("\n".join(decision.lines), key=f"decision-{version.name}")
    return made
