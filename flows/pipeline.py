"""Every stage of dvc.yaml as a Prefect task, read from DVC's own graph when the run starts.

DVC alone decides what has to run and keeps what came of it; Prefect shows, retries, and ends it; MLflow hears of it.
`dvc repro` without any of this gives the same bytes.
"""

import hashlib
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from prefect import State, flow, get_run_logger, runtime, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture, wait
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from clozeline.artifacts.lock import Lock
from clozeline.errors import ClozelineError, TransientError
from clozeline.params import Params, read_params
from clozeline.tracking.flow_run import WORKSPACE, FlowRun, StageRecord, Status
from clozeline.workspace import Workspace, set_defaults, tracking_uri
from flows.dvc_output import Outcome, Said, failure_of, is_advice, outcome_of
from flows.git_state import git_tags
from flows.inputs import require_inputs, unlabelled_tasks
from flows.plain_errors import tell_errors_plainly
from flows.run_lock import run_lock
from flows.run_logs import forget_old_runs
from flows.stage_environment import stage_environment
from flows.stage_graph import StageNode, fingerprint, read_stage_graph
from flows.stage_process import StageProcesses

_LINES_IN_PREFECT: Final = 2_000  # of a stage; the log file has all of them
_CHARACTERS_IN_PREFECT: Final = 1_000  # of a line
_RETRY_DELAYS_SECONDS: Final = [5.0, 30.0, 120.0]
# The cast: Prefect types a runner by its kind of future, and a flow asks for any.
_ONE_AT_A_TIME: Final = cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner[Any](max_workers=1))


@dataclass(frozen=True)
class StageResult:
    """How a stage ended."""

    name: str
    outcome: Outcome
    seconds: float


class PipelineRun:
    """What every stage task of one run shares."""

    def __init__(self, workspace: Workspace, graph: Sequence[StageNode], processes: StageProcesses) -> None:
        self.workspace = workspace
        self.graph = graph
        self.processes = processes
        self.logs = workspace.logs / str(runtime.flow_run.id)
        self.tags = {
            **git_tags(workspace.root),
            WORKSPACE: f"{socket.gethostname()}:{workspace.root}",
            "prefect.flow_run_id": str(runtime.flow_run.id),
        }
        self.tracked = FlowRun.open(tracking_uri(workspace), str(runtime.flow_run.name), self.tags)
        self.results: dict[str, StageResult] = {}

    def require_inputs(self) -> None:
        """Raise `DataError` if a later stage wants of those that ended what they do not make."""
        done = {name for name, result in self.results.items() if result.outcome != "failed"}
        require_inputs(self.workspace.root, self.graph, done)

    def end(self, status: Status) -> None:
        root = self.workspace.root
        lock = root / "dvc.lock"
        tags: dict[str, str] = {f"dvc.outcome.{result.name}": result.outcome for result in self.results.values()}
        if lock.exists():
            tags["dvc.lock_md5"] = hashlib.md5(lock.read_bytes(), usedforsecurity=False).hexdigest()
        metrics = [path for node in self.graph for path in node.metrics]
        self.tracked.end(
            status,
            tags=tags,
            metrics={path.partition("/")[2].removesuffix(".json"): root / path for path in metrics},
            files=[file for file in (lock, root / "params.yaml") if file.exists()],
        )


@flow(name="pipeline", task_runner=_ONE_AT_A_TIME)
def pipeline(project: Path = Path()) -> list[StageResult]:
    """Bring every stage of the project up to date, each after those that it depends on.

    One stage runs at a time: each uses every core.

    Raises:
        ParamsError: params.yaml or dvc.yaml is wrong; nothing was started.
        DataError: a file that no stage makes is missing; nothing was started.
        TransientError: another run is at work here, or MLflow does not answer.
        ClozelineError: what the first stage that failed told; stages that need it did not start.
    """
    tell_errors_plainly()
    workspace = Workspace(project.resolve())
    set_defaults(workspace)
    params = read_params(workspace.root / "params.yaml")
    with run_lock(workspace.lock_file) as lock:
        forget_old_runs(workspace.logs)
        graph = read_stage_graph(workspace.root)
        _warn_of_missing_labels(params)
        require_inputs(workspace.root, graph, done={node.name for node in graph if not node.is_changed})
        run = PipelineRun(workspace, graph, StageProcesses(kept_open=[lock]))
        try:
            _run_stages(run)
        except ClozelineError:
            run.end("FAILED")
            not_started = [node.name for node in graph if node.name not in run.results]
            get_run_logger().error("not started: %s", ", ".join(not_started) or "none")
            raise
        except BaseException:
            # Cancelled or interrupted: the tasks' threads wait for their processes.
            run.processes.end_all()
            run.end("KILLED")
            raise
        run.end("FINISHED")
        return [run.results[node.name] for node in graph]


def _warn_of_missing_labels(params: Params) -> None:
    for name in unlabelled_tasks(params):
        get_run_logger().warning(
            "finetune.%s learns which file a text is from: preprocess.source.label_field is null. If your text has no "
            "labels, write `finetune: {}` and leave only `encoder: encoder` under export.models",
            name,
        )


def _run_stages(run: PipelineRun) -> None:
    futures: dict[str, PrefectFuture[None]] = {}
    for node in run.graph:
        stage_task = run_stage.with_options(name=f"dvc:{node.name}", task_run_name=node.name)
        parents = [futures[parent] for parent in node.parents]
        futures[node.name] = stage_task.submit(run=run, node=node, wait_for=parents, return_state=False)
    wait(list(futures.values()))
    for future in futures.values():
        if future.state.is_failed() or future.state.is_crashed():
            future.result()  # raises what the stage told


def _is_transient(task: object, task_run: object, state: State[None]) -> bool:
    return isinstance(state.result(raise_on_failure=False), TransientError)


@task(
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=len(_RETRY_DELAYS_SECONDS),
    retry_delay_seconds=_RETRY_DELAYS_SECONDS,
    retry_condition_fn=_is_transient,
)
def run_stage(run: PipelineRun, node: StageNode) -> None:
    """Bring one stage up to date; its parents are."""
    started = time.monotonic()
    outcome: Outcome = "failed"
    try:
        run.require_inputs()
        outcome = _reproduce(run, node) if node.is_changed else "unchanged"
    finally:
        get_run_logger().info("%s: %s", node.name, outcome)
        run.results[node.name] = StageResult(node.name, outcome, time.monotonic() - started)


def _reproduce(run: PipelineRun, node: StageNode) -> Said:
    root, tracked = run.workspace.root, run.tracked
    run_id = tracked.start_stage(node.name, fingerprint(root, node.name), run.tags)
    extra = {} if run_id is None else {"MLFLOW_RUN_ID": run_id}
    log = run.logs / f"{node.name.replace('/', '_')}.log"
    hearing = _Hearing(node.name)
    ended = run.processes.reproduce(
        node.name, root=root, environment=stage_environment(run.workspace, extra), log=log, hear=hearing.hear
    )
    if ended.exit_code != 0 or hearing.outcome is None:
        failure = failure_of(ended)
        if run_id is not None:
            tracked.fail_stage(run_id, "KILLED" if run.processes.are_ending else "FAILED", str(failure))
        raise failure
    if run_id is not None and hearing.outcome == "executed":
        locked = Lock.read(root / "dvc.lock").stages[node.name]
        metrics, shown = [root / path for path in node.metrics], [root / path for path in node.shown]
        tracked.end_stage(run_id, StageRecord(hearing.outcome, locked, metrics, [*shown, log]))
    elif run_id is not None:
        tracked.drop_stage(run_id)
    return hearing.outcome


class _Hearing:
    """Passes a stage's lines on to Prefect, and notes what DVC says about how it ends."""

    def __init__(self, name: str) -> None:
        self.outcome: Said | None = None
        self._name = name
        self._num_lines = 0
        self._logger = get_run_logger()

    def hear(self, line: str) -> None:
        self.outcome = self.outcome or outcome_of(self._name, line)
        if not line or is_advice(line):
            return
        self._num_lines += 1
        if self._num_lines < _LINES_IN_PREFECT:
            self._logger.info(line[:_CHARACTERS_IN_PREFECT])
        elif self._num_lines == _LINES_IN_PREFECT:
            self._logger.info("… more lines are in the log file")
