"""One pipeline run: its logs, its tracking in MLflow, and the result of each stage."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from prefect import get_run_logger, runtime

from clozeline.orchestration.checks import git_tags, identity_of, require_inputs
from clozeline.orchestration.prefect_adapter import seconds_before
from clozeline.orchestration.stage_process import StageProcesses, failure_of, stage_environment
from clozeline.records.record import Lock
from clozeline.system import errors, files
from clozeline.system.processes import uninterrupted
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.tracking import delivery, outbox, runs
from clozeline.versions import remote, reproduce
from clozeline.versions.graph import StageNode, fingerprint

_LINES_IN_PREFECT = 2_000  # per stage; the log file has all
_CHARACTERS_IN_PREFECT = 1_000  # per line
_RECORDED_WITHIN_SECONDS = 10.0  # the ends of stages, after those of their processes


@dataclass(frozen=True)
class StageResult:
    """Outcome and duration of a stage."""

    name: str
    outcome: reproduce.Outcome | Literal["failed"]
    seconds: float


class PipelineRun:
    """One run of the whole stage graph; several threads may bring stages up to date."""

    def __init__(self, workspace: Workspace, graph: Sequence[StageNode], processes: StageProcesses) -> None:
        self.graph = graph
        self.results: dict[str, StageResult] = {}  # results of the stages that ended, by name
        self.workspace = workspace
        self._processes = processes
        self._alone = threading.Lock()  # DVC is not made for threads
        self._at_work = threading.Condition()
        self._num_at_work = 0  # stages that threads bring up to date
        self._logs = workspace.logs / str(runtime.flow_run.id)
        self._can_restore = any(node.is_changed for node in graph) and remote.fetch_runs(workspace.root)
        self._tags = {
            **git_tags(workspace.root),
            delivery.WORKSPACE: identity_of(workspace),
            "prefect.flow_run_id": str(runtime.flow_run.id),
        }
        self._tracked = runs.FlowRun(workspace.outbox, tracking_uri(workspace), str(runtime.flow_run.name), self._tags)

    @classmethod
    @contextlib.contextmanager
    def open(cls, workspace: Workspace, graph: Sequence[StageNode], *, kept_open: Sequence[int]) -> Iterator[Self]:
        """Yield the run of the current flow; none of its processes outlives the block.

        `kept_open`: file descriptors that every stage process inherits and holds while it lives.

        Raises:
            ArtifactError: MLflow's local database is damaged, or its server refuses the caller; nothing was started.
        """
        run = cls(workspace, graph, StageProcesses(kept_open))
        try:
            yield run
        except errors.ClozelineError:
            run._end("FAILED")
            not_started = [node.name for node in graph if node.name not in run.results]
            get_run_logger().error("not started: %s", ", ".join(not_started) or "none")
            raise
        except BaseException:
            # Cancelled or interrupted: the tasks' threads wait for their processes.
            with uninterrupted():
                run._processes.end_all()
                with run._at_work:  # each thread still records the end of its stage
                    run._at_work.wait_for(lambda: not run._num_at_work, _RECORDED_WITHIN_SECONDS)
            run._end("KILLED")
            raise
        run._end("FINISHED")

    def wait_before(self, attempt: int) -> None:
        """Wait before a stage is tried again.

        Raises:
            KeyboardInterrupt: the run is ending, so there is no further attempt.
        """
        if seconds := seconds_before(attempt):
            get_run_logger().info("the next attempt starts in %.0f s", seconds)
            if self._processes.ending.wait(seconds):
                raise KeyboardInterrupt

    def bring_up_to_date(self, node: StageNode) -> None:
        """Let DVC bring stage `node` up to date.

        Raises:
            DataError: an input is missing that an earlier stage should have made.
            ClozelineError: the error that the stage reported.
        """
        started = time.monotonic()
        outcome: reproduce.Outcome | Literal["failed"] = "failed"
        with self._at_work:
            self._num_at_work += 1
        try:
            done = {name for name, result in self.results.items() if result.outcome != "failed"}
            require_inputs(self.workspace.root, self.graph, done)
            outcome = self._reproduce(node) if node.is_changed else "unchanged"
        finally:
            get_run_logger().info("%s: %s", node.name, "stopped" if self._processes.ending.is_set() else outcome)
            self.results[node.name] = StageResult(node.name, outcome, time.monotonic() - started)
            with self._at_work:
                self._num_at_work -= 1
                self._at_work.notify_all()

    def _reproduce(self, node: StageNode) -> reproduce.Outcome:
        root = self.workspace.root
        with self._alone:
            run_id = self._tracked.start_stage(node.name, fingerprint(root, node.name), self._tags)
        environment = stage_environment(self.workspace, self._tracked.environment(run_id))
        if self._can_restore:
            environment[reproduce.RESTORE_FROM_REMOTE] = "1"
        log = self._logs / f"{node.name.replace('/', '_')}.log"
        hearing = _Hearing()
        ended = self._processes.reproduce(
            node.name, root=root, environment=environment, log=log, hear=hearing.hear, again=node.runs_again
        )
        if ended.outcome is None:
            failure = failure_of(ended)
            failure.is_reported &= not hearing.is_cut
            self._tracked.fail_stage(run_id, "KILLED" if self._processes.ending.is_set() else "FAILED", str(failure))
            raise failure
        if ended.outcome == "executed":
            locked = Lock.read(root / "dvc.lock").stages[node.name]
            metrics, shown = [root / path for path in node.metrics], [root / path for path in node.shown]
            self._tracked.end_stage(run_id, ended.outcome, locked, metrics=metrics, shown=[*shown, log])
        else:
            self._tracked.drop_stage(run_id)
        return ended.outcome

    def _end(self, status: outbox.Status) -> None:
        root = self.workspace.root
        lock = root / "dvc.lock"
        tags: dict[str, str] = {f"dvc.outcome.{result.name}": result.outcome for result in self.results.values()}
        if lock.exists():
            tags["dvc.lock_md5"] = files.md5_of(lock)
        metrics = [path for node in self.graph for path in node.metrics]
        self._tracked.end(
            status,
            tags=tags,
            metrics={path.partition("/")[2].removesuffix(".json"): root / path for path in metrics},
            files=[file for file in (lock, root / "params.yaml") if file.exists()],
        )


class _Hearing:
    """Passes the lines of one stage on to Prefect, up to a limit."""

    def __init__(self) -> None:
        self._num_lines = 0
        self._logger = get_run_logger()

    @property
    def is_cut(self) -> bool:
        """Whether lines were dropped, because the stage wrote too many or Prefect logs only warnings."""
        return self._num_lines >= _LINES_IN_PREFECT or not self._logger.isEnabledFor(logging.INFO)

    def hear(self, line: str) -> None:
        if not line:
            return
        self._num_lines += 1
        if self._num_lines < _LINES_IN_PREFECT:
            self._logger.info(line[:_CHARACTERS_IN_PREFECT])
        elif self._num_lines == _LINES_IN_PREFECT:
            self._logger.info("… more lines are in the log file")
