"""Every stage of dvc.yaml as a Prefect task, read from DVC's own graph when the run starts.

DVC alone decides what has to run and stores the outputs; Prefect shows, retries and ends stages; MLflow tracks them.
`dvc repro` alone gives the same bytes.
"""

from pathlib import Path

from prefect import flow, runtime, task
from prefect.futures import PrefectFuture, wait

from clozeline.orchestration import checks, prefect_adapter, stage_process
from clozeline.orchestration.pipeline import PipelineRun, StageResult
from clozeline.params.project import Params
from clozeline.params.reading import read_params
from clozeline.registry.signature import signing_key
from clozeline.system.workspace import Workspace, run_lock, set_defaults
from clozeline.versions.graph import StageNode, read_stage_graph
from clozeline.versions.project import refuse_own_outputs, require_writable_cache

_SNAPSHOT = "snapshot"


@flow(name="pipeline", task_runner=prefect_adapter.STAGES)
def pipeline(project: Path = Path(), refresh: bool = False, only: str | None = None) -> list[StageResult]:
    """Bring every stage of the project up to date, in the order of their dependencies.

    One stage runs at a time, because each uses every core. With `CLOZELINE_CLUSTER`, independent stages run at the same
    time, each on a node.

    Args:
        project: folder with dvc.yaml and params.yaml.
        only: name of a stage; others run only if it depends on them.
        refresh: take a new snapshot of a source that DVC cannot watch: a URL, a database, a branch on the hub.

    Raises:
        ParamsError: params.yaml or dvc.yaml is wrong, a model to start from is an output of a stage, an encoder of your
            own cannot be used, or there is no key to sign releases with; nothing was started.
        DataError: a file that no stage makes is missing, or its task cannot read it; nothing was started.
        StorageError: DVC's cache is not writable, or the disk has too little room; nothing was started.
        ArtifactError: MLflow's local database is damaged, or its server refuses the caller; or there is no champion to
            continue from; nothing was started.
        TransientError: another run is active in this folder.
        ClozelineError: the error of the first stage that failed; stages that depend on it did not start.
    """
    prefect_adapter.tell_errors_plainly()
    workspace = Workspace(project.resolve())
    set_defaults(workspace)
    params = read_params(workspace.root / "params.yaml")
    signing_key()  # the release after this run would miss it hours later
    with run_lock(workspace.lock_file, flow_run=prefect_adapter.flow_run_id()) as lock:
        stage_process.forget_old_runs(workspace.logs)
        is_due = refresh and not params.preprocess.source.is_watched
        again = {_SNAPSHOT} if is_due else ()
        graph = read_stage_graph(workspace.root, again=again, only=only)
        refuse_own_outputs(params.starting_models, (out for node in graph for out in node.outs), workspace.root)
        require_writable_cache(workspace.root)
        if checks.settle_start(workspace, graph, params):
            graph = read_stage_graph(workspace.root, again=again, only=only)
        checks.warn_of_missing_labels(params)
        checks.require_inputs(workspace.root, graph, done={node.name for node in graph if not node.is_changed})
        checks.require_readable_labels(workspace.root, graph, params)
        checks.require_own_encoder(workspace, graph, params)
        checks.require_disk_space(workspace.root, graph, params)
        checks.require_start(workspace, graph, params)
        with PipelineRun.open(workspace, graph, kept_open=[lock]) as run:
            _run_stages(run, params)
        return [run.results[node.name] for node in graph]


def _run_stages(run: PipelineRun, params: Params) -> None:
    futures: dict[str, PrefectFuture[None]] = {}
    for node in run.graph:
        stage_task = run_stage.with_options(name=f"dvc:{node.name}", task_run_name=node.name)
        parents = [futures[parent] for parent in node.parents]
        futures[node.name] = stage_task.submit(run=run, node=node, params=params, wait_for=parents, return_state=False)
    wait(list(futures.values()))
    for future in futures.values():
        if future.state.is_failed() or future.state.is_crashed():
            future.result()  # raises the error of the stage


@task(**prefect_adapter.STAGE_RETRIES)
def run_stage(run: PipelineRun, node: StageNode, params: Params) -> None:
    """Bring one stage up to date, after its parents."""
    run.wait_before(runtime.task_run.run_count)
    checks.settle_for(node, run.workspace, params)
    run.bring_up_to_date(node)
