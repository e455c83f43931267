"""The outbox: a folder for each run that MLflow does not have completely yet.

`work/outbox/<run>/` holds `record.json` (what the run is), `points.jsonl` (points of its curves, as they come) and
`files/` (its artifacts). The flow and its stage processes write there, and never wait for MLflow; no failure of
tracking stops the work that is tracked. `delivery` brings MLflow up to date, and removes the folder of a run that ended
once MLflow has all of it.
"""

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from clozeline.records.record import LockedPath, Record
from clozeline.system.errors import ArtifactError
from clozeline.system.files import remove_folder, replacing_file, replacing_folder

_LOG = logging.getLogger(__name__)
# Environment variable with the folder of the outbox, for stage processes.
OUTBOX = "CLOZELINE_OUTBOX"
# Environment variable with the name, within the outbox, of the run that a stage process logs to.
RUN = "CLOZELINE_RUN"
Status = Literal["FINISHED", "FAILED", "KILLED"]
_RECORD = "record.json"
_FILES = "files"
_BYTES_PER_READ = 1 << 20


class TrackedRun(Record):
    """A run, except for its curves and files."""

    name: str
    tags: Mapping[str, str]
    started_ms: int
    # Name of the parent run within the outbox; None: the run of a flow, of which only one is open in a workspace.
    parent: str | None = None
    # Of what a stage computes: it continues the interrupted run of its workspace that has the same one.
    fingerprint: str = ""
    params: Mapping[str, str] = {}
    figures: Mapping[str, float] = {}
    datasets: tuple[LockedPath, ...] = ()  # inputs of a stage, with DVC's hashes
    # DROPPED: a stage that had nothing to do; MLflow does not keep its run.
    status: Status | Literal["RUNNING", "DROPPED"] = "RUNNING"
    ended_ms: int | None = None


class Points(Record):
    """Points of curves, one for each metric."""

    values: Mapping[str, float]
    step: int
    timestamp_ms: int


class Outbox:
    """The runs of one workspace. Writing to it never raises: no fault of tracking may stop a stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_lost = 0  # records that could not be written, as on a full disk
        self.reason = ""  # why the last one was lost, or why a run cannot be read

    def open(self, run: str, record: TrackedRun) -> None:
        """Add a run. If it is there, an attempt to make it was killed, and this one continues it."""
        with self.losing(f"the run {record.name}"):
            if (self.folder / run).exists():
                record.write(self.folder / run / _RECORD)
                return
            with replacing_folder(self.folder / run) as beside:
                record.write(beside / _RECORD)

    def change(self, run: str, *, tags: Mapping[str, str] | None = None, **changes: object) -> None:
        """Add `tags` to a run's record, and replace other fields of it; MLflow gets them even if this process ends."""
        with self.losing(f"a record ({', '.join(['tags', *changes])})"):
            record = TrackedRun.read(self.folder / run / _RECORD)
            changed = {**dict(record), **changes, "tags": {**record.tags, **(tags or {})}}
            TrackedRun.model_validate(changed).write(self.folder / run / _RECORD)

    def end(self, run: str, status: Status | Literal["DROPPED"], **changes: Any) -> None:
        """End a run, with the changes of `change`. Nothing may be added to it afterwards."""
        self.change(run, **changes, status=status, ended_ms=now_ms())

    def end_killed(self) -> None:
        """End the open runs. The caller knows that the processes that opened them are gone."""
        for run, record in self.records().items():
            if record.status == "RUNNING":
                self.change(run, status="KILLED")

    def add_points(self, run: str, values: Mapping[str, float], step: int) -> None:
        """Append points of curves."""
        with self.losing("a point"):
            line = Points(values=values, step=step, timestamp_ms=now_ms()).model_dump_json() + "\n"
            _append(self.folder / run / "points.jsonl", line.encode())

    def add_file(self, run: str, file: Path, folder: str = "") -> None:
        """Add a copy of `file` as it is now; `folder`: its place among the artifacts of the run."""
        with self.losing(file.name):
            if not (self.folder / run / _RECORD).exists():
                raise FileNotFoundError(f"the outbox has no run {run}: it has ended")
            copy = self.folder / run / _FILES / folder / file.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            with replacing_file(copy) as written:
                shutil.copyfile(file, written)

    def runs(self) -> list[str]:
        """Return the names of all runs."""
        return [path.parent.name for path in self.folder.glob(f"[!.]*/{_RECORD}")]

    def records(self) -> dict[str, TrackedRun]:
        """Return the runs in the order in which they started, a parent before its children.

        A damaged record is left where it is, and named in `reason`.
        """
        found = {}
        for run in self.runs():
            try:
                found[run] = TrackedRun.read(self.folder / run / _RECORD)
            except (OSError, ArtifactError) as error:
                self.reason = " ".join(str(error).split())
        return dict(sorted(found.items(), key=lambda item: (item[1].started_ms, item[1].parent is not None)))

    def points(self, run: str, offset: int, *, has_ended: bool) -> tuple[list[Points], int, int]:
        """Return points from byte `offset` on, the offset after them, and the number of lines that were cut.

        A line that is still being written is left for the next call, unless the run has ended.
        """
        file = self.folder / run / "points.jsonl"
        if not file.exists():
            return [], offset, 0
        with file.open("rb") as opened:
            opened.seek(offset)
            content = opened.read(_BYTES_PER_READ)
        is_rest = has_ended and len(content) < _BYTES_PER_READ
        whole = content if is_rest else content[: content.rfind(b"\n") + 1]
        lines = [line for line in whole.splitlines() if line.strip()]
        read = []
        for line in lines:
            with suppress(ValidationError):  # it was cut
                read.append(Points.model_validate_json(line))
        return read, offset + len(whole), len(lines) - len(read)

    def files(self, run: str) -> list[tuple[Path, str]]:
        """Return the files that MLflow does not have yet, with their folders among the artifacts."""
        kept = self.folder / run / _FILES
        found = sorted(path for path in kept.rglob("*") if path.is_file())
        places = [(path, path.parent.relative_to(kept)) for path in found]
        return [(path, str(place)) for path, place in places if not any(part[0] == "." for part in place.parts)]

    def remove(self, run: str) -> None:
        remove_folder(self.folder / run)

    @contextmanager
    def losing(self, what: str) -> Iterator[None]:
        """Log and count an error of the block: then `what` is not recorded."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a full disk is a StorageError, a file that vanished an OSError
            self.num_lost += 1
            self.reason = " ".join(str(error).split())[:300]
            _LOG.warning("%s is not recorded for MLflow: %s", what, self.reason)


def now_ms() -> int:
    return int(time.time() * 1000)


def _append(file: Path, line: bytes) -> None:
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # NFS does not append in one step, and stages run on other machines
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # a crash or a full disk cut the line before this one
        if os.write(descriptor, line) != len(line):  # one call, so that lines of two processes never mix
            raise OSError("the disk is full")
    finally:
        os.close(descriptor)
