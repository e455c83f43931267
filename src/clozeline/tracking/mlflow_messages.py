"""What MLflow is told of a run of the outbox. Telling it twice, as after a kill, changes nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag, ViewType
from mlflow.tracking import MlflowClient

from clozeline.tracking.database import experiment_id, prepare
from clozeline.tracking.mlflow_adapter import PARENT_RUN
from clozeline.tracking.outbox import TrackedRun

WORKSPACE: Final = "clozeline.workspace"
"""Tag with the identity of the workspace that a run belongs to: others may use the same database."""
OUTBOX_RUN: Final = "clozeline.outbox_run"
"""Tag with the name of a run in the outbox: by it a run is found again whose creation was not noted."""
_PARAMS_PER_CALL: Final = 100  # MLflow refuses a batch of more
POINTS_PER_CALL: Final = 1000  # likewise


class MlflowRuns:
    """The runs of this project in the MLflow at one address. Its methods raise MLflow's errors."""

    def __init__(self, tracking_uri: str) -> None:
        self._client = prepare(tracking_uri)
        self._experiment = experiment_id(self._client, tracking_uri)
        self._last_steps: dict[tuple[str, str], int] = {}  # of each curve

    def answers(self) -> bool:
        """Whether the server answers at all: then a failure is of one call, not of the server."""
        try:
            self._client.search_experiments(max_results=1)
        except Exception:  # noqa: BLE001  # any failure means that it does not
            return False
        return True

    def open(self, run: str, record: TrackedRun) -> str:
        """Return MLflow's id of a run of the outbox: of one that it knows or that is continued, or of a new one."""
        if run_id := self._id_of(run):
            return run_id
        tags = {**record.tags, OUTBOX_RUN: run}
        if record.parent is None:
            close_killed(self._client, self._experiment, record.tags[WORKSPACE])
        else:
            parent_id = self._id_of(record.parent)
            tags |= {PARENT_RUN: parent_id} if parent_id else {}
            tags |= {"dvc.stage": record.name, "dvc.fingerprint": record.fingerprint}
            if run_id := self._id_of_cut_off(record):
                self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
                self._client.update_run(run_id, status="RUNNING")
                return run_id
        made = self._client.create_run(self._experiment, record.started_ms, tags=tags, run_name=record.name)
        return str(made.info.run_id)

    def set_facts(self, run_id: str, record: TrackedRun) -> None:
        """Set tags and inputs, and the params that the run lacks: MLflow fails a run if one changes its value."""
        self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in record.tags.items()])
        known = self._client.get_run(run_id).data.params if record.params else {}
        new = [Param(key, text) for key, text in record.params.items() if key not in known]
        for start in range(0, len(new), _PARAMS_PER_CALL):
            self._client.log_batch(run_id, params=new[start : start + _PARAMS_PER_CALL])
        if record.datasets:
            context = [InputTag("mlflow.data.context", "input")]
            datasets = [
                DatasetInput(Dataset(given.name, given.digest, "dvc", given.source, profile=given.profile), context)
                for given in record.datasets
            ]
            self._client.log_inputs(run_id, datasets=datasets)

    def add_metrics(self, run_id: str, metrics: Sequence[Metric]) -> None:
        """Add at most `POINTS_PER_CALL` values; MLflow keeps one of equal ones."""
        self._client.log_batch(run_id, metrics=metrics)

    def add_points(self, run_id: str, points: Sequence[Metric]) -> None:
        """Add the points after the last step that each curve has: a resumed stage repeats the steps before it."""
        for key in {point.key for point in points if (run_id, point.key) not in self._last_steps}:
            history = self._client.get_metric_history(run_id, key)
            self._last_steps[run_id, key] = max((point.step for point in history), default=-1)
        last_steps = self._last_steps.copy()
        new = []
        for point in points:
            if point.step > last_steps[run_id, point.key]:
                last_steps[run_id, point.key] = point.step
                new.append(point)
        if new:
            self.add_metrics(run_id, new)
        self._last_steps = last_steps

    def add_file(self, run_id: str, file: Path, folder: str) -> None:
        self._client.log_artifact(run_id, str(file), None if folder == "." else folder)

    def end(self, run_id: str, status: str, ended_ms: int | None) -> None:
        self._client.set_terminated(run_id, status, end_time=ended_ms)

    def delete(self, run: str) -> None:
        """Delete a run of the outbox, if MLflow has it."""
        if run_id := self._id_of(run):
            self._client.delete_run(run_id)

    def _id_of(self, run: str) -> str:
        """Return the id of a run that this process created, or one that was killed; "" if there is none."""
        found = self._client.search_runs([self._experiment], f"tags.`{OUTBOX_RUN}` = '{run}'", max_results=1)
        return str(found[0].info.run_id) if found else ""

    def _id_of_cut_off(self, record: TrackedRun) -> str:
        """Return the id of the interrupted run of the same stage, whose curves are continued; "" if there is none."""
        condition = (
            f"tags.`dvc.fingerprint` = '{record.fingerprint}' AND attributes.status != 'FINISHED'"
            f" AND tags.`{WORKSPACE}` = '{record.tags[WORKSPACE]}'"
        )
        found = self._client.search_runs([self._experiment], condition, ViewType.ACTIVE_ONLY, max_results=1)
        return str(found[0].info.run_id) if found else ""


def close_killed(client: MlflowClient, experiment: str, workspace: str) -> None:
    """Close the open runs of a workspace. The caller holds its run lock, so the processes that opened them are gone."""
    open_runs = f"tags.`{WORKSPACE}` = '{workspace}' AND attributes.status = 'RUNNING'"
    for run in client.search_runs([experiment], filter_string=open_runs):
        client.set_terminated(run.info.run_id, status="KILLED")
