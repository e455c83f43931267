"""Sends each message of the outbox to MLflow. Sending one twice, as after a kill, changes nothing."""

from collections.abc import Sequence
from functools import singledispatchmethod
from typing import Final

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag, ViewType
from mlflow.tracking import MlflowClient

from clozeline.tracking.database import experiment_id, prepare
from clozeline.tracking.mlflow_adapter import PARENT_RUN
from clozeline.tracking.outbox import Curve, Drop, End, Facts, File, Message, OpenFlow, OpenStage, Outbox, Point

WORKSPACE: Final = "clozeline.workspace"
"""Tag with the identity of the workspace that a run belongs to: others may use the same database."""
OUTBOX_RUN: Final = "clozeline.outbox_run"
"""Tag with the name of a run in the outbox: by it a run is found again whose creation was not noted."""
_PARAMS_PER_CALL: Final = 100  # MLflow refuses a batch of more
POINTS_PER_CALL: Final = 1000  # likewise


class UnknownRunError(Exception):
    """The message is about a run that MLflow refused, or whose first message was lost."""


class MlflowMessages:
    """A connection to MLflow at one address."""

    def __init__(self, outbox: Outbox, tracking_uri: str) -> None:
        self.run_ids: dict[str, str] = {}
        """MLflow's ids by the names of the runs in the outbox."""
        self._outbox = outbox
        self._client = prepare(tracking_uri)
        self._experiment = experiment_id(self._client, tracking_uri)
        self._last_steps: dict[tuple[str, str], int] = {}  # of each curve

    def answers(self) -> bool:
        """Whether the server answers at all: then a failure is of one message, not of the server."""
        try:
            self._client.search_experiments(max_results=1)
        except Exception:  # noqa: BLE001  # any failure means that it does not
            return False
        return True

    @singledispatchmethod
    def tell(self, message: Message) -> None:
        """Send the message to MLflow; raises MLflow's errors, or `UnknownRunError`."""
        raise TypeError(message)

    @tell.register
    def _(self, message: OpenFlow) -> None:
        if self._known(message.run):
            return
        close_killed(self._client, self._experiment, message.workspace)
        run = self._client.create_run(
            self._experiment,
            start_time=message.started_ms,
            run_name=message.name,
            tags={**message.tags, OUTBOX_RUN: message.run},
        )
        self.run_ids[message.run] = str(run.info.run_id)

    @tell.register
    def _(self, message: OpenStage) -> None:
        if self._known(message.run):
            return
        tags = {
            **message.tags,
            PARENT_RUN: self._id_of(message.parent),
            "dvc.stage": message.name,
            "dvc.fingerprint": message.fingerprint,
            OUTBOX_RUN: message.run,
        }
        cut_off = self._client.search_runs(
            [self._experiment],
            filter_string=f"tags.`dvc.fingerprint` = '{message.fingerprint}'"
            f" AND tags.`{WORKSPACE}` = '{message.workspace}' AND attributes.status != 'FINISHED'",
            run_view_type=ViewType.ACTIVE_ONLY,
            max_results=1,
        )
        if cut_off:  # continue its curves
            run_id = str(cut_off[0].info.run_id)
            self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
            self._client.update_run(run_id, status="RUNNING")
        else:
            run = self._client.create_run(
                self._experiment, start_time=message.started_ms, run_name=message.name, tags=tags
            )
            run_id = str(run.info.run_id)
        self.run_ids[message.run] = run_id

    @tell.register
    def _(self, message: Curve) -> None:
        self.tell_points(message.run, message.points)

    @tell.register
    def _(self, message: Facts) -> None:
        run_id = self._id_of(message.run)
        if message.params:
            self._add_params(run_id, message)
        for start in range(0, max(len(message.metrics), 1), POINTS_PER_CALL):
            chosen = message.metrics[start : start + POINTS_PER_CALL]
            tags = [RunTag(key, value) for key, value in message.tags.items()] if start == 0 else []
            self._client.log_batch(run_id, metrics=list(map(_metric, chosen)), tags=tags)
        if message.datasets:
            context = [InputTag("mlflow.data.context", "input")]
            datasets = [
                DatasetInput(Dataset(given.name, given.digest, "dvc", given.source, profile=given.profile), context)
                for given in message.datasets
            ]
            self._client.log_inputs(run_id, datasets=datasets)

    @tell.register
    def _(self, message: File) -> None:
        kept = self._outbox.path_of(message.sha256, message.name)
        self._client.log_artifact(self._id_of(message.run), str(kept), message.folder)

    @tell.register
    def _(self, message: End) -> None:
        self._client.set_terminated(self._id_of(message.run), message.status, end_time=message.ended_ms)

    @tell.register
    def _(self, message: Drop) -> None:
        self._client.delete_run(self._id_of(message.run))

    def tell_points(self, run: str, points: Sequence[Point]) -> None:
        """Add the points after the last step that each curve has: a resumed stage repeats the steps before it."""
        run_id = self._id_of(run)
        for key in {point.key for point in points if (run_id, point.key) not in self._last_steps}:
            history = self._client.get_metric_history(run_id, key)
            self._last_steps[run_id, key] = max((point.step for point in history), default=-1)
        last_steps = self._last_steps.copy()
        new = []
        for point in points:
            if point.step > last_steps[run_id, point.key]:
                last_steps[run_id, point.key] = point.step
                new.append(_metric(point))
        if new:
            self._client.log_batch(run_id, metrics=new)
        self._last_steps = last_steps

    def _known(self, run: str) -> bool:
        """Whether MLflow has the run, created by this process or by one that was killed."""
        if run not in self.run_ids:
            found = self._client.search_runs([self._experiment], f"tags.`{OUTBOX_RUN}` = '{run}'", max_results=1)
            if found:
                self.run_ids[run] = str(found[0].info.run_id)
        return run in self.run_ids

    def _id_of(self, run: str) -> str:
        if not self._known(run):
            raise UnknownRunError(f"MLflow has no run for {run}")
        return self.run_ids[run]

    def _add_params(self, run_id: str, message: Facts) -> None:
        """Add the params that the run lacks; MLflow fails a run if a logged param changes its value."""
        known = self._client.get_run(run_id).data.params
        new = [Param(key, text) for key, text in message.params.items() if key not in known]
        for start in range(0, len(new), _PARAMS_PER_CALL):
            self._client.log_batch(run_id, params=new[start : start + _PARAMS_PER_CALL])


def close_killed(client: MlflowClient, experiment: str, workspace: str) -> None:
    """Close the open runs of a workspace. The caller holds its run lock, so the processes that opened them are gone."""
    open_runs = f"tags.`{WORKSPACE}` = '{workspace}' AND attributes.status = 'RUNNING'"
    for run in client.search_runs([experiment], filter_string=open_runs):
        client.set_terminated(run.info.run_id, status="KILLED")


def _metric(point: Point) -> Metric:
    return Metric(point.key, point.value, point.timestamp_ms, point.step)
