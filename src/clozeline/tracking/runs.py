"""One flow run in MLflow: a parent run, with a child run for each stage that executed.

All records go through the outbox of the workspace, so neither a flow nor a stage ever waits for MLflow.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from clozeline.records.record import LockedStage, numbers_of
from clozeline.system.errors import TransientError, without_secrets
from clozeline.tracking.delivery import Delivery, DeliveryThread
from clozeline.tracking.mlflow import require_answer
from clozeline.tracking.outbox import OUTBOX, RUN, Outbox, Status, TrackedRun, now_ms

_LOG = logging.getLogger(__name__)
_NOT_IN_A_NAME = re.compile(r"[^\w.:/ -]")


class FlowRun:
    """The parent run. What MLflow does not take now stays in the outbox for the next flow run of the workspace."""

    def __init__(self, folder: Path, tracking_uri: str, name: str, tags: Mapping[str, str]) -> None:
        """Start the parent run; open runs of this workspace are closed. `folder` is that of the outbox.

        Raises:
            ArtifactError: the local database is damaged, or the server refuses the caller; nothing has been done yet.
        """
        try:
            require_answer(tracking_uri)
        except TransientError as error:
            _LOG.warning("%s: the run goes on, and reports when it answers", error.problem)
        self.tracking_uri = tracking_uri
        self.run = uuid4().hex  # name of the parent run within the outbox
        self._outbox = Outbox(folder)
        self._outbox.end_killed()
        self._delivery = Delivery(self._outbox, tracking_uri)
        self._thread = DeliveryThread(self._delivery)
        self._outbox.open(self.run, TrackedRun(name=name, tags=tags, started_ms=now_ms()))

    def start_stage(self, stage: str, fingerprint: str, tags: Mapping[str, str]) -> str:
        """Return the name, within the outbox, of the run that a stage process logs to.

        An unfinished run of this workspace with the same fingerprint continues under the new parent, because its curves
        are this stage's.
        """
        run = uuid4().hex
        record = TrackedRun(name=stage, tags=tags, started_ms=now_ms(), parent=self.run, fingerprint=fingerprint)
        self._outbox.open(run, record)
        return run

    def environment(self, run: str) -> Mapping[str, str]:
        """Return the environment variables by which a stage process logs to its run."""
        return {OUTBOX: str(self._outbox.folder.resolve()), RUN: run}

    def end_stage(
        self, run: str, outcome: str, locked: LockedStage, *, metrics: Sequence[Path], shown: Sequence[Path]
    ) -> None:
        """Log the params, metrics, inputs and files of a stage that executed, and close its run.

        `shown`: paths of plots, reports and the log.
        """
        for path in [*metrics, *shown]:
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file():
                    folder = path.name / file.parent.relative_to(path) if path.is_dir() else ""
                    self._outbox.add_file(run, file, str(folder))
        self._outbox.end(
            run,
            "FINISHED",
            tags={"dvc.outcome": outcome, "dvc.stage_sha256": locked.sha256},
            figures=self._figures(dict.fromkeys(metrics, "")),
            params=locked.flat_params(),
            datasets=tuple(path for path in locked.data if path.md5),
        )

    def drop_stage(self, run: str) -> None:
        """Delete the run of a stage that turned out to have nothing to do."""
        self._outbox.end(run, "DROPPED")

    def fail_stage(self, run: str, status: Status, message: str) -> None:
        """Close the run of a stage that failed or was stopped."""
        self._outbox.end(run, status, tags={"error": message})

    def end(
        self, status: Status, *, tags: Mapping[str, str], metrics: Mapping[str, Path], files: Sequence[Path]
    ) -> None:
        """Log tags, figures and files to the parent run, and close it.

        `metrics` maps a prefix for the names of the figures to their metric file.
        """
        given = {_allowed_name(key): value for key, value in tags.items()}
        figures = self._figures({path: f"{name}." for name, path in metrics.items()})
        for file in files:
            self._outbox.add_file(self.run, file)
        self._outbox.end(self.run, status, tags=given, figures=figures)
        self._outbox.end_killed()
        if not self._thread.close():
            _LOG.warning(
                "MLflow at %s does not have everything yet: the rest is kept in %s, and the next run delivers it (%s)",
                without_secrets(self.tracking_uri),
                self._outbox.folder,
                without_secrets(self._delivery.reason),
            )
        if num_lost := self._delivery.num_lost + self._outbox.num_lost:
            reason = self._delivery.refusal or self._outbox.reason
            _LOG.warning("%d records or metric values of this run are missing in MLflow: %s", num_lost, reason)

    def _figures(self, paths: Mapping[Path, str]) -> dict[str, float]:
        """Return the numbers of metric files, with the prefix that `paths` has for their names."""
        found: dict[str, float] = {}
        for path, prefix in paths.items():
            with self._outbox.losing(path.name):
                found |= {_allowed_name(f"{prefix}{key}"): value for key, value in numbers_of(path).items()}
        return found


def deliver_waiting(folder: Path, tracking_uri: str) -> str:
    """Deliver what earlier flow runs left in the outbox; return "" if MLflow has all of it, else why not.

    The caller holds the run lock, so runs that are still open were killed.

    Raises:
        TransientError: MLflow does not answer.
    """
    outbox = Outbox(folder)
    outbox.end_killed()
    delivery = Delivery(outbox, tracking_uri)
    if delivery.deliver() == "no answer":
        raise TransientError(
            f"MLflow at {tracking_uri} does not answer, and records in {folder} wait for it: {delivery.reason}",
            do="start it; the next run delivers the records",
        )
    return delivery.reason if delivery.is_waiting else ""


def _allowed_name(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name)
