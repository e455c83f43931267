"""Delivery: a thread that nothing waits for brings MLflow up to date with the outbox.

Each step can be repeated, as after a kill, without loss or doubles. `synced.json` in the folder of a run remembers what
MLflow has; a delivery that was killed before it was written asks MLflow.
"""

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Literal

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.records.record import LockedPath, Record
from clozeline.system.files import alone
from clozeline.tracking import run_logger
from clozeline.tracking.mlflow import PARENT_RUN, experiment_id, prepare
from clozeline.tracking.outbox import Outbox, TrackedRun

_LOG = logging.getLogger(__name__)

# Tag with the identity of the workspace that a run belongs to: others may use the same database.
WORKSPACE = "clozeline.workspace"
# Tag with the name of a run in the outbox: by it a run is found again whose creation was not noted.
OUTBOX_RUN = "clozeline.outbox_run"
_PARAMS_PER_CALL = 100  # MLflow refuses a batch of more
_POINTS_PER_CALL = 1000  # likewise
_DIGEST_CHARACTERS = 36  # likewise; `<md5>.dir` has just as many

_NEVER_TAKEN = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE"}
# Number of attempts at a step that fails while the server answers.
_MOST_ATTEMPTS = 5
_LOOK_SECONDS = 0.5
_SYNCED = "synced.json"
Progress = Literal["done", "later", "no answer"]


class MlflowRuns:
    """The runs of this project in the MLflow at one address. Its methods raise MLflow's errors."""

    def __init__(self, tracking_uri: str) -> None:
        self.tracking_uri = tracking_uri
        self._last_steps: dict[tuple[str, str], int] = {}  # of each curve

    @cached_property
    def _client(self) -> MlflowClient:
        return prepare(self.tracking_uri)

    @cached_property
    def _experiment(self) -> str:
        return experiment_id(self._client, self.tracking_uri)

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
            # The interrupted run of the same stage, whose curves are continued.
            cut_off = (
                f"tags.`dvc.fingerprint` = '{record.fingerprint}' AND attributes.status != 'FINISHED'"
                f" AND tags.`{WORKSPACE}` = '{record.tags[WORKSPACE]}'"
            )
            if run_id := self._id_with(cut_off):
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
            self._client.log_inputs(run_id, datasets=list(map(_input, record.datasets)))

    def add_metrics(self, run_id: str, metrics: Sequence[Metric]) -> None:
        """Add at most 1,000 values; MLflow keeps one of equal ones."""
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
        return self._id_with(f"tags.`{OUTBOX_RUN}` = '{run}'")

    def _id_with(self, condition: str) -> str:
        found = self._client.search_runs([self._experiment], condition, max_results=1)
        return str(found[0].info.run_id) if found else ""


def _input(path: LockedPath) -> DatasetInput:
    """Return an input of a stage with DVC's hash, so that a run and the cache identify it by the same hash."""
    source = json.dumps({"uri": f"dvc://{path.path}", "md5": path.md5})
    profile = json.dumps({"size_bytes": path.size})
    dataset = Dataset(path.path, str(path.md5)[:_DIGEST_CHARACTERS], "dvc", source, profile=profile)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "input")])


def close_killed(client: MlflowClient, experiment: str, workspace: str) -> None:
    """Close the open runs of a workspace. The caller holds its run lock, so the processes that opened them are gone."""
    open_runs = f"tags.`{WORKSPACE}` = '{workspace}' AND attributes.status = 'RUNNING'"
    for run in client.search_runs([experiment], filter_string=open_runs):
        client.set_terminated(run.info.run_id, status="KILLED")


class Synced(Record):
    """What MLflow has of a run."""

    tracking_uri: str
    run_id: str = ""
    told: TrackedRun | None = None
    num_bytes: int = 0  # of points.jsonl
    status: str = "RUNNING"


class Delivery:
    """Delivers one outbox."""

    def __init__(self, outbox: Outbox, tracking_uri: str) -> None:
        self._outbox = outbox
        self._mlflow = MlflowRuns(tracking_uri)
        self._failures: Counter[str] = Counter()  # of each run, at its present step
        self._reason = ""
        # Steps and files that MLflow refused, and lines that were cut; of curves, the points of the stage itself.
        self.num_lost = 0
        self.refusal = ""  # why the last of them was lost

    @property
    def is_waiting(self) -> bool:
        """Whether MLflow lacks a part of any run, or a run has not ended."""
        return bool(self._outbox.runs())

    @property
    def reason(self) -> str:
        """Why MLflow lacks something, in words."""
        return self._reason or self._outbox.reason or "there was no time to deliver it"

    def deliver(self) -> Progress:
        """Bring MLflow up to date. `later`: the server answers, but not everything could be stored. Never raises."""
        try:
            if not self._outbox.runs():
                return "done"
            with alone(self._outbox.folder / "delivery.lock"):  # an earlier flow of this workspace may still be sending
                return self._deliver_all()
        except Exception as error:  # noqa: BLE001  # no fault of tracking may stop a run
            self._reason = _in_words(error)
            _LOG.debug("the outbox waits: %s", error)
            return "no answer"

    def _deliver_all(self) -> Progress:
        """Deliver one run after another, because a stage may continue an earlier one; remove those that MLflow has."""
        self._reason = ""
        records = self._outbox.records()
        complete = set()
        progress: Progress = "done"
        for run, record in records.items():
            try:
                has_all = self._deliver_run(run, record)
            except Exception as error:
                if not self._mlflow.answers():
                    raise
                self._reason = _in_words(error)
                self._failures[run] += 1
                if self._failures[run] < _MOST_ATTEMPTS:
                    return "later"
                has_all = False  # it stays, and no longer delays the others
            if not has_all:
                progress = "later"
            elif record.status != "RUNNING":
                complete.add(run)
        parents = {record.parent for run, record in records.items() if run not in complete}
        for run in complete - parents:
            self._outbox.remove(run)
        return progress

    def _deliver_run(self, run: str, record: TrackedRun) -> bool:
        """Return whether MLflow has all of the run that there is."""
        if record.status == "DROPPED":
            with self._step(run):
                self._mlflow.delete(run)
            return True
        synced = self._synced(run)
        if not synced.run_id:
            synced = self._note(run, synced, run_id=self._mlflow.open(run, record))
        if synced.told != record:
            with self._step(run):
                self._mlflow.set_facts(synced.run_id, record)
            figures = [Metric(key, value, 0, 0) for key, value in record.figures.items()]
            self._send(run, figures, partial(self._mlflow.add_metrics, synced.run_id))
            synced = self._note(run, synced, told=record)
        synced = self._deliver_points(run, record, synced)
        has_all = self._deliver_files(run, synced.run_id)
        if record.status not in ("RUNNING", synced.status):
            with self._step(run):
                self._mlflow.end(synced.run_id, record.status, record.ended_ms)
            self._note(run, synced, status=record.status)
        return has_all

    def _deliver_points(self, run: str, record: TrackedRun, synced: Synced) -> Synced:
        while True:
            has_ended = record.status != "RUNNING"
            points, offset, num_cut = self._outbox.points(run, synced.num_bytes, has_ended=has_ended)
            if offset == synced.num_bytes:
                return synced
            metrics = [
                Metric(key, value, each.timestamp_ms, each.step)
                for each in points
                for key, value in each.values.items()
            ]
            self._send(run, metrics, partial(self._mlflow.add_points, synced.run_id))
            if num_cut:
                self._lose(f"{num_cut} lines of points were cut when they were written", num_cut)
            synced = self._note(run, synced, num_bytes=offset)

    def _deliver_files(self, run: str, run_id: str) -> bool:
        """Return whether MLflow has all files. Each goes from the outbox once it is stored; a store may be away."""
        has_all = True
        for file, folder in self._outbox.files(run):
            try:
                self._mlflow.add_file(run_id, file, folder)
            except Exception as error:
                if not self._mlflow.answers():
                    raise
                if not _is_final(error):
                    self._reason, has_all = _in_words(error), False
                    continue
                self._lose(_in_words(error))
            file.unlink()
        return has_all

    def _send(self, run: str, metrics: Sequence[Metric], send: Callable[[Sequence[Metric]], None]) -> None:
        """Send metrics in as many calls as it takes. Of those that MLflow refuses, halves are sent, down to one."""
        for start in range(0, len(metrics), _POINTS_PER_CALL):
            chosen = metrics[start : start + _POINTS_PER_CALL]
            try:
                send(chosen)
            except Exception as error:
                if not self._is_refused(run, error):
                    raise
                if len(chosen) > 1:
                    middle = len(chosen) // 2
                    self._send(run, chosen[:middle], send)
                    self._send(run, chosen[middle:], send)
                else:
                    self._lose(_in_words(error), 0 if chosen[0].key.startswith(run_logger.PREFIX) else 1)

    @contextmanager
    def _step(self, run: str) -> Iterator[None]:
        """Go on after an error of the block by which MLflow refuses it."""
        try:
            yield
        except Exception as error:
            if not self._is_refused(run, error):
                raise
            self._lose(_in_words(error))

    def _is_refused(self, run: str, error: Exception) -> bool:
        """Whether MLflow would refuse the same call again, or has failed often enough while it answers."""
        return _is_final(error) or (self._failures[run] >= _MOST_ATTEMPTS - 1 and self._mlflow.answers())

    def _lose(self, reason: str, count: int = 1) -> None:
        self.num_lost += count
        self.refusal = reason
        _LOG.warning("MLflow refused a part of this run: %s", reason)

    def _synced(self, run: str) -> Synced:
        """Return what MLflow has of the run; nothing if another MLflow had it."""
        nothing = Synced(tracking_uri=self._mlflow.tracking_uri)
        synced = Synced.read(self._outbox.folder / run / _SYNCED, absent=nothing)
        return synced if synced.tracking_uri == nothing.tracking_uri else nothing

    def _note(self, run: str, synced: Synced, **changes: object) -> Synced:
        synced = synced.model_copy(update=changes)
        synced.write(self._outbox.folder / run / _SYNCED)
        self._failures.pop(run, None)
        return synced


class DeliveryThread:
    """Delivers twice a second until it is closed; every `retry_seconds` while the server does not answer."""

    retry_seconds: ClassVar[float] = 5.0
    close_seconds: ClassVar[float] = 20.0

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlflow-delivery", daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """Wait at most `close_seconds` for the rest; return whether MLflow has everything."""
        self._closing.set()
        self._thread.join(self.close_seconds)
        self._ended.set()
        return not self._thread.is_alive() and not self._delivery.is_waiting

    def _run(self) -> None:
        pause_seconds = _LOOK_SECONDS
        while not self._closing.wait(pause_seconds):
            pause_seconds = _LOOK_SECONDS if self._delivery.deliver() == "done" else self.retry_seconds
        num_later = 0
        while (progress := self._delivery.deliver()) != "done":
            num_later += progress == "later"
            if num_later > _MOST_ATTEMPTS or self._ended.wait(min(self.retry_seconds, 1.0)):
                return


def _is_final(error: Exception) -> bool:
    """Whether MLflow would refuse the same call again."""
    return isinstance(error, MlflowException) and error.error_code in _NEVER_TAKEN


def _in_words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
