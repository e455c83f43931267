"""One flow run in MLflow: a parent run, with a child run for each stage that executed.

All messages go through the outbox of the workspace, so neither a flow nor a stage ever waits for MLflow.
"""

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

from clozeline.artifacts.lock import LockedStage, numbers_of
from clozeline.errors import TransientError
from clozeline.tracking.database import require_answer
from clozeline.tracking.delivery import Delivery, DeliveryThread
from clozeline.tracking.forgiving import forgiving
from clozeline.tracking.mlflow_messages import WORKSPACE
from clozeline.tracking.outbox import (
    OUTBOX,
    RUN,
    Dataset,
    Drop,
    End,
    Facts,
    OpenFlow,
    OpenStage,
    Outbox,
    Point,
    Status,
)

_LOG = logging.getLogger(__name__)
_DIGEST_CHARACTERS: Final = 36  # MLflow's limit; `<md5>.dir` has just as many
_NOT_IN_A_NAME: Final = re.compile(r"[^\w.:/ -]")


@dataclass(frozen=True)
class StageRecord:
    """Logged facts of a stage that executed."""

    outcome: str
    locked: LockedStage
    metrics: Sequence[Path]
    shown: Sequence[Path]
    """Paths of plots, reports and the log."""


class FlowRun:
    """The parent run. Messages that MLflow does not accept now stay in the outbox for the next flow run of the
    workspace."""

    def __init__(self, outbox: Outbox, tracking_uri: str, *, retry_seconds: float, close_seconds: float) -> None:
        self._outbox = outbox
        self.tracking_uri = tracking_uri
        self.run = uuid4().hex
        """Name of the parent run within the outbox."""
        self._delivery = Delivery(outbox, tracking_uri)
        self._thread = DeliveryThread(self._delivery, retry_seconds=retry_seconds, close_seconds=close_seconds)

    @classmethod
    def open(
        cls,
        folder: Path,
        tracking_uri: str,
        name: str,
        tags: Mapping[str, str],
        *,
        retry_seconds: float = 5.0,
        close_seconds: float = 20.0,
    ) -> Self:
        """Start the parent run; open runs of this workspace are closed. `folder` is that of the outbox.

        Raises:
            ArtifactError: the local database is damaged, or the server refuses the caller; nothing has been done yet.
        """
        _require_allowed(tracking_uri)
        run = cls(Outbox(folder), tracking_uri, retry_seconds=retry_seconds, close_seconds=close_seconds)
        run._outbox.add(
            OpenFlow(run=run.run, name=name, workspace=tags[WORKSPACE], tags=dict(tags), started_ms=_now_ms())
        )
        return run

    def start_stage(self, stage: str, fingerprint: str, tags: Mapping[str, str]) -> str:
        """Return the name, within the outbox, of the run that a stage process logs to.

        An unfinished run of this workspace with the same fingerprint continues under the new parent, because its curves
        are this stage's.
        """
        run = uuid4().hex
        self._outbox.add(
            OpenStage(
                run=run,
                parent=self.run,
                name=stage,
                workspace=tags[WORKSPACE],
                fingerprint=fingerprint,
                tags=dict(tags),
                started_ms=_now_ms(),
            )
        )
        return run

    def environment(self, run: str) -> Mapping[str, str]:
        """Return the environment variables by which a stage process logs to its run."""
        return {OUTBOX: str(self._outbox.folder.resolve()), RUN: run}

    def end_stage(self, run: str, record: StageRecord) -> None:
        """Log the params, metrics, inputs and files of a stage that executed, and close its run."""
        facts = Facts(
            run=run,
            metrics=_figures(dict.fromkeys(record.metrics, "")),
            params=record.locked.flat_params(),
            tags={"dvc.outcome": record.outcome, "dvc.stage_sha256": record.locked.sha256},
            datasets=tuple(_datasets(record.locked)),
        )
        self._outbox.add(facts)
        for path in [*record.metrics, *record.shown]:
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file():
                    folder = path.name / file.parent.relative_to(path) if path.is_dir() else None
                    self._outbox.add_file(run, file, None if folder is None else folder.as_posix())
        self._close(run, "FINISHED")

    def drop_stage(self, run: str) -> None:
        """Delete the run of a stage that turned out to have nothing to do."""
        self._outbox.add(Drop(run=run))

    def fail_stage(self, run: str, status: Status, message: str) -> None:
        """Close the run of a stage that failed or was stopped."""
        self._outbox.add(Facts(run=run, tags={"error": message}))
        self._close(run, status)

    def end(
        self, status: Status, *, tags: Mapping[str, str], metrics: Mapping[str, Path], files: Sequence[Path]
    ) -> None:
        """Log tags, figures and files to the parent run, and close it.

        `metrics` maps a prefix for the names of the figures to their metric file.
        """
        given = {_allowed_name(key): value for key, value in tags.items()}
        figures = _figures({path: f"{name}." for name, path in metrics.items()})
        self._outbox.add(Facts(run=self.run, metrics=figures, tags=given))
        for file in files:
            self._outbox.add_file(self.run, file)
        self._close(self.run, status)
        if self._thread.close():
            forgiving(self._delivery.clean_up)
        else:
            _LOG.warning(
                "MLflow at %s does not have everything yet: the rest is kept in %s, and the next run delivers it",
                self.tracking_uri,
                self._outbox.folder,
            )
        if num_lost := self._delivery.num_lost + self._outbox.num_lost:
            _LOG.warning("%d records or metric values of this run are missing in MLflow", num_lost)

    def _close(self, run: str, status: Status) -> None:
        self._outbox.add(End(run=run, status=status, ended_ms=_now_ms()))


def deliver_waiting(folder: Path, tracking_uri: str) -> bool:
    """Deliver the messages that earlier flow runs left in the outbox; return whether MLflow took all of them.

    The caller holds the run lock.

    Raises:
        TransientError: MLflow does not answer.
    """
    delivery = Delivery(Outbox(folder), tracking_uri)
    if delivery.deliver() == "no answer":
        raise TransientError(
            "MLflow does not answer, and the records of earlier runs wait for it",
            given=f"{tracking_uri}; {folder}",
            expected="an MLflow server or database",
            do="start it; the next run delivers the records",
        )
    delivery.clean_up()
    return not delivery.num_waiting


def _require_allowed(tracking_uri: str) -> None:
    """Raise at once if the server refuses the caller; a server that is away may come back, and the run need not
    wait."""
    try:
        require_answer(tracking_uri)
    except TransientError as error:
        _LOG.warning("%s at %s: the run goes on, and reports when it answers", error.problem, tracking_uri)


def _figures(paths: Mapping[Path, str]) -> tuple[Point, ...]:
    """Return the numbers of metric files, with the prefix that `paths` has for their names."""
    found: list[Point] = []
    for path, prefix in paths.items():
        numbers = forgiving(partial(numbers_of, path)) or {}
        found += [Point(key=_allowed_name(f"{prefix}{key}"), value=value) for key, value in numbers.items()]
    return tuple(found)


def _datasets(locked: LockedStage) -> list[Dataset]:
    """Return the stage's inputs with DVC's hashes, so that a run and the cache identify them by the same hashes."""
    return [
        Dataset(
            name=path.path,
            digest=path.md5[:_DIGEST_CHARACTERS],
            source=json.dumps({"uri": f"dvc://{path.path}", "md5": path.md5}),
            profile=json.dumps({"size_bytes": path.size}),
        )
        for path in locked.data
        if path.md5
    ]


def _allowed_name(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name)


def _now_ms() -> int:
    return int(time.time() * 1000)
