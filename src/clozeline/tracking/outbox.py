"""The outbox: messages to MLflow, kept in the workspace until MLflow has them.

`work/outbox/journal.jsonl` is append-only: the flow and its stage processes add lines to it and never wait for MLflow.
Each line is a message with the hash of its content, by which it is delivered once (`tracking/delivery.py`).
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from clozeline.artifacts.record import Record
from clozeline.storage.atomic import replacing_file
from clozeline.storage.fingerprints import sha256_of

_LOG = logging.getLogger(__name__)
OUTBOX: Final = "CLOZELINE_OUTBOX"
"""Environment variable with the folder of the outbox, for stage processes."""
RUN: Final = "CLOZELINE_RUN"
"""Environment variable with the name, within the outbox, of the run that a stage process logs to."""
Status = Literal["FINISHED", "FAILED", "KILLED"]


class Point(Record):
    """One value of a metric."""

    key: str
    value: float
    timestamp_ms: int = 0
    step: int = 0


class Dataset(Record):
    """An input of a stage, with DVC's hash."""

    name: str
    digest: str
    source: str
    profile: str


class OpenFlow(Record):
    """A flow run began. Open runs of its workspace were killed, because only one can be active."""

    kind: Literal["open_flow"] = "open_flow"
    run: str
    """Name of the run within the outbox; MLflow gives it an id of its own when it learns of the run."""
    name: str
    workspace: str
    tags: Mapping[str, str]
    started_ms: int


class OpenStage(Record):
    """A stage started, or resumes an interrupted run with the same fingerprint."""

    kind: Literal["open_stage"] = "open_stage"
    run: str
    parent: str
    name: str
    workspace: str
    fingerprint: str
    tags: Mapping[str, str]
    started_ms: int


class Curve(Record):
    """Points of curves. Steps that the run had before it was resumed are dropped."""

    kind: Literal["curve"] = "curve"
    run: str
    points: tuple[Point, ...]


class Facts(Record):
    """Params, figures, tags and inputs of a run."""

    kind: Literal["facts"] = "facts"
    run: str
    params: Mapping[str, str] = {}
    metrics: tuple[Point, ...] = ()
    tags: Mapping[str, str] = {}
    datasets: tuple[Dataset, ...] = ()


class File(Record):
    """A file of a run, stored in the outbox as `files/<sha256>/<name>`."""

    kind: Literal["file"] = "file"
    run: str
    sha256: str
    name: str
    folder: str | None = None
    """Folder among the artifacts of the run; None: at their top."""


class End(Record):
    """A run ended."""

    kind: Literal["end"] = "end"
    run: str
    status: Status
    ended_ms: int


class Drop(Record):
    """The run of a stage that had nothing to do is deleted."""

    kind: Literal["drop"] = "drop"
    run: str


Message = OpenFlow | OpenStage | Curve | Facts | File | End | Drop
_MESSAGES: Final[TypeAdapter[Message]] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])


class Outbox:
    """The journal and the files of one workspace. Adding to it never raises: no fault of tracking may stop a stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal.jsonl"
        self.num_lost = 0
        """Messages that could not be written, as on a full disk."""

    def add(self, message: Message) -> None:
        """Append `message`; once this returns, it is delivered even if this process ends."""
        try:
            content = message.model_dump_json()
            line = f'{{"key": "{_key_of(content)}", "message": {content}}}\n'
            self._append(line.encode())
        except (OSError, ValueError) as error:
            self.num_lost += 1
            _LOG.warning("a record for MLflow is lost: %s", error)

    def add_file(self, run: str, file: Path, folder: str | None = None) -> None:
        """Append a copy of `file` as it is now."""
        try:
            sha256 = sha256_of(file)
            kept = self.path_of(sha256, file.name)
            if not kept.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                with replacing_file(kept) as written:
                    shutil.copyfile(file, written)
        except Exception as error:  # noqa: BLE001  # a full disk is a StorageError, a file that vanished an OSError
            self.num_lost += 1
            _LOG.warning("%s is not stored in MLflow: %s", file.name, " ".join(str(error).split())[:300])
            return
        self.add(File(run=run, sha256=sha256, name=file.name, folder=folder))

    def path_of(self, sha256: str, name: str) -> Path:
        return self.folder / "files" / sha256 / name

    def read(self, offset: int) -> tuple[Sequence[tuple[str, Message]], int, int]:
        """Return the messages from byte `offset` on with their keys, the next offset, and the number of broken lines.

        A line that is still being written is left for the next call.
        """
        if not self.journal.exists():
            return [], 0, 0
        with self.journal.open("rb") as file:
            file.seek(offset)
            content = file.read()
        lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
        read = [_message_of(line) for line in lines if line.strip()]
        whole = [found for found in read if found is not None]
        return whole, offset + sum(map(len, lines)), len(read) - len(whole)

    def _append(self, line: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.journal, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # NFS does not append in one step, and stages run on other machines
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line  # a crash or a full disk cut the line before this one
            if os.write(descriptor, line) != len(line):  # one call, so that lines of two processes never mix
                raise OSError("the disk is full")
        finally:
            os.close(descriptor)


def _key_of(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _message_of(line: bytes) -> tuple[str, Message] | None:
    """Return key and message of a line; None if the line was cut."""
    try:
        entry = json.loads(line)
        message = _MESSAGES.validate_python(entry["message"])
        return (str(entry["key"]), message) if _key_of(message.model_dump_json()) == entry["key"] else None
    except (ValueError, KeyError, TypeError, ValidationError):
        return None
