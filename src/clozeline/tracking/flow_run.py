"""One flow run in MLflow: a parent run, with a child run for each stage that executed."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag, ViewType
from mlflow.tracking import MlflowClient

from clozeline.artifacts.lock import LockedStage, numbers_of
from clozeline.tracking.database import experiment_id, prepare
from clozeline.tracking.forgiving import forgiving
from clozeline.tracking.mlflow_adapter import PARENT_RUN

WORKSPACE: Final = "clozeline.workspace"
"""Tag with the identity of the workspace that a run belongs to: others may use the same database."""
_DIGEST_CHARACTERS: Final = 36  # MLflow's limit; `<md5>.dir` has just as many
_PARAMS_PER_CALL: Final = 100  # MLflow refuses a batch of more
_NOT_IN_A_NAME: Final = re.compile(r"[^\w.:/ -]")
Status = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True)
class StageRecord:
    """What is logged about a stage that executed."""

    outcome: str
    locked: LockedStage
    metrics: Sequence[Path]
    shown: Sequence[Path]
    """Paths of plots, reports and the log."""


class FlowRun:
    """The parent run. Once it is open, a failure of MLflow is only logged, and the run continues."""

    def __init__(self, client: MlflowClient, experiment: str, run_id: str) -> None:
        self._client = client
        self._experiment = experiment
        self.run_id = run_id

    @classmethod
    def open(cls, tracking_uri: str, name: str, tags: Mapping[str, str]) -> Self:
        """Start the parent run. Close open runs of this workspace: only one can be active, so they were killed.

        Raises:
            ArtifactError: the local database is damaged; nothing has been done yet.
            TransientError: MLflow does not answer; nothing has been done yet.
        """
        client = prepare(tracking_uri)
        experiment = experiment_id(client, tracking_uri)
        close_killed(client, experiment, tags[WORKSPACE])
        run = client.create_run(experiment, run_name=name, tags=dict(tags))
        return cls(client, experiment, run.info.run_id)

    def start_stage(self, stage: str, fingerprint: str, tags: Mapping[str, str]) -> str | None:
        """Return the id of the run that a stage process logs to; None if MLflow failed.

        An unfinished run of this workspace with the same fingerprint continues under the new parent, because its curves
        are this stage's.
        """
        names = {PARENT_RUN: self.run_id, "dvc.stage": stage, "dvc.fingerprint": fingerprint, **tags}

        def start() -> str:
            cut_off = self._client.search_runs(
                [self._experiment],
                filter_string=f"tags.`dvc.fingerprint` = '{fingerprint}' AND tags.`{WORKSPACE}` = '{tags[WORKSPACE]}'"
                " AND attributes.status != 'FINISHED'",
                run_view_type=ViewType.ACTIVE_ONLY,
                max_results=1,
            )
            if not cut_off:
                run = self._client.create_run(self._experiment, run_name=stage, tags=names)
                return str(run.info.run_id)
            run_id = str(cut_off[0].info.run_id)
            self._client.update_run(run_id, status="RUNNING")
            self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in names.items()])
            return run_id

        return forgiving(start)

    def end_stage(self, run_id: str, record: StageRecord) -> None:
        """Log the params, metrics, inputs and files of a stage that executed, and close its run."""
        forgiving(lambda: self._tell(run_id, record))
        forgiving(lambda: self._client.set_terminated(run_id, status="FINISHED"))

    def drop_stage(self, run_id: str) -> None:
        """Delete the run of a stage that turned out to have nothing to do."""
        forgiving(lambda: self._client.delete_run(run_id))

    def fail_stage(self, run_id: str, status: Status, message: str) -> None:
        """Close the run of a stage that failed or was stopped."""
        forgiving(lambda: self._client.set_tag(run_id, "error", message))
        forgiving(lambda: self._client.set_terminated(run_id, status=status))

    def end(
        self, status: Status, *, tags: Mapping[str, str], metrics: Mapping[str, Path], files: Sequence[Path]
    ) -> None:
        """Log tags, figures and files to the parent run, and close it.

        `metrics` maps a prefix for the names of the figures to their metric file.
        """

        def tell() -> None:
            self._client.log_batch(
                self.run_id,
                metrics=[
                    Metric(_allowed_name(f"{name}.{key}"), value, 0, 0)
                    for name, path in metrics.items()
                    for key, value in numbers_of(path).items()
                ],
                tags=[RunTag(_allowed_name(key), value) for key, value in tags.items()],
            )
            for file in files:
                self._client.log_artifact(self.run_id, str(file))

        forgiving(tell)
        forgiving(lambda: self._client.set_terminated(self.run_id, status=status))

    def _tell(self, run_id: str, record: StageRecord) -> None:
        _add_params(self._client, run_id, record.locked.flat_params())
        self._client.log_batch(
            run_id,
            metrics=[
                Metric(_allowed_name(key), value, 0, 0)
                for path in record.metrics
                for key, value in numbers_of(path).items()
            ],
            tags=[RunTag("dvc.outcome", record.outcome), RunTag("dvc.stage_sha256", record.locked.sha256)],
        )
        self._client.log_inputs(run_id, datasets=_datasets(record.locked))
        for path in [*record.metrics, *record.shown]:
            if path.is_dir():
                self._client.log_artifacts(run_id, str(path), path.name)
            elif path.is_file():
                self._client.log_artifact(run_id, str(path))


def close_killed(client: MlflowClient, experiment: str, workspace: str) -> None:
    """Close the open runs of a workspace. The caller holds its run lock, so the processes that opened them are gone."""
    open_runs = f"tags.`{WORKSPACE}` = '{workspace}' AND attributes.status = 'RUNNING'"
    for run in client.search_runs([experiment], filter_string=open_runs):
        client.set_terminated(run.info.run_id, status="KILLED")


def _add_params(client: MlflowClient, run_id: str, texts: Mapping[str, str]) -> None:
    """Log the params that the run lacks; MLflow fails a run if a logged param changes its value."""
    known = client.get_run(run_id).data.params
    new = [Param(key, text) for key, text in texts.items() if key not in known]
    for start in range(0, len(new), _PARAMS_PER_CALL):
        client.log_batch(run_id, params=new[start : start + _PARAMS_PER_CALL])


def _datasets(locked: LockedStage) -> list[DatasetInput]:
    """Return the stage's inputs with DVC's hashes, so that a run and the cache identify them by the same hashes."""
    return [
        DatasetInput(
            Dataset(
                name=path.path,
                digest=path.md5[:_DIGEST_CHARACTERS],
                source_type="dvc",
                source=json.dumps({"uri": f"dvc://{path.path}", "md5": path.md5}),
                profile=json.dumps({"size_bytes": path.size}),
            ),
            [InputTag("mlflow.data.context", "input")],
        )
        for path in locked.data
        if path.md5
    ]


def _allowed_name(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name)
