"""The changes of a model's champion: an append-only list, which orders concurrent changes and is their audit record.

MLflow has neither transactions nor locks, and the last writer of an alias wins. But it gives each version number of a
registered model once. A change of the champion of `NAME` is therefore first appended as the next version of the
registered model `NAME.changes`, with the champion that it replaces. Everyone who reads the list comes to the same
result: a change counts only if that champion was still the champion. The aliases are written afterwards, from the list.

A lock in MLflow would need a lease, and a holder that stalls for longer than its lease writes all the same.
"""

import getpass
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal
from uuid import uuid4

from mlflow.entities.model_registry import ModelVersion
from mlflow.tracking import MlflowClient
from pydantic import BaseModel, ConfigDict, Field

from clozeline.errors import TransientError
from clozeline.registry.client import create_model, tried_again
from clozeline.tracking.mlflow_adapter import every

SUFFIX: Final = ".changes"
"""Suffix of the name of a registered model that lists the changes of another model's champion as its versions."""
_CHANGE: Final = "clozeline.change"
_DONE: Final = "clozeline.done"
_PAGE: Final = 1000

Kind = Literal["promotion", "rollback", "undo", "by hand"]
"""`by hand`: someone moved the alias in MLflow, without Clozeline."""


def who() -> str:
    """Return who makes a change: the user of MLflow's server, or of this machine, with the machine's name."""
    try:
        user = os.environ.get("MLFLOW_TRACKING_USERNAME") or getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


class Change(BaseModel):
    """A change of the champion. Its record in MLflow is written once and never changed."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # later versions may record more

    kind: Kind
    before: str
    """Version that it replaces as champion; empty for a model without a champion."""
    after: str
    """Version that becomes the champion; empty if a champion was withdrawn by hand."""
    why: str = ""
    evidence: str = ""
    """Address of the record that the decision was taken on."""
    who: str = Field(default_factory=who)
    when: datetime = Field(default_factory=lambda: datetime.now(UTC))
    key: str = Field(default_factory=lambda: uuid4().hex)
    """Identity by which its author finds it, also if MLflow's client sent it twice."""

    def __str__(self) -> str:
        versions = f"version {self.before or 'none'} to {self.after or 'none'}"
        return f"{self.when:%Y-%m-%d %H:%M} {self.kind}, {versions}, by {self.who}: {self.why or 'no reason given'}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A change with its place in the list."""

    number: int
    change: Change
    is_done: bool
    """Whether the aliases were written."""


class ChampionChangedError(TransientError):
    """Someone else changed the champion first."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one model's champion that count, oldest first."""

    entries: tuple[Entry, ...]

    @property
    def last(self) -> Entry | None:
        return self.entries[-1] if self.entries else None

    @property
    def pending(self) -> tuple[Entry, ...]:
        """Changes whose aliases are not written yet."""
        return tuple(entry for entry in self.entries if not entry.is_done)

    def since(self, number: int) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.number >= number)

    def rolled_back_since(self, number: int) -> dict[str, bool]:
        """Return, for the versions that changes from `number` on touched, whether they are rolled back now."""
        marks: dict[str, bool] = {}
        for change in (entry.change for entry in self.since(number)):
            if change.kind == "rollback":
                marks[change.before] = True
            marks[change.after] = False
        return {version: mark for version, mark in marks.items() if version}


class ChangeList:
    """The list of one registry. Its callers translate MLflow's errors."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client

    def read(self, name: str) -> Changes:
        """Return the changes of the champion of model `name` that count."""
        return Changes(tuple(_counting(sorted(self._all(name), key=lambda entry: entry.number))))

    def append(self, name: str, change: Change, source: str, run_id: str) -> None:
        """Append `change`; `source` and `run_id` are those of the version that it is about.

        Raises:
            ChampionChangedError: the champion is no longer the one that it replaces; nothing was changed.
        """
        changes = self.read(name)
        if changes.last is None:
            # First, because a server with accounts answers 403, not 404, to a version of a model that does not exist.
            create_model(self._client, f"{name}{SUFFIX}", "Who changed the champion, when and why")
        if changes.last is None or changes.last.change.after == change.before:
            self._create(name, change, source, run_id)
            changes = self.read(name)
        if not any(entry.change.key == change.key for entry in changes.entries):
            last = changes.last.change if changes.last else None
            raise ChampionChangedError(
                f"the champion of {name} was changed by someone else",
                given=f"to replace: version {change.before or 'none'}; meanwhile: {last or 'nothing that is recorded'}",
                expected="the champion that was looked at",
                do="look at it (`clozeline history`), then type the command again",
            )

    def done(self, name: str, entries: Sequence[Entry]) -> None:
        """Record, oldest first, that the aliases follow these changes."""
        for entry in entries:
            self._client.set_model_version_tag(f"{name}{SUFFIX}", str(entry.number), _DONE, "true")

    def _create(self, name: str, change: Change, source: str, run_id: str) -> None:
        tried_again(
            lambda: self._client.create_model_version(
                f"{name}{SUFFIX}",
                source,
                run_id=run_id,
                tags={_CHANGE: change.model_dump_json()},
                description=str(change),
                await_creation_for=0,  # it is ready at once
            )
        )

    def _all(self, name: str) -> Iterator[Entry]:
        searched = (f"name = '{name}{SUFFIX}'", _PAGE, ["version_number ASC"])
        found = every(self._client.search_model_versions, *searched)
        return (_entry(version) for version in found if _CHANGE in version.tags)


def _entry(version: ModelVersion) -> Entry:
    change = Change.model_validate_json(version.tags[_CHANGE])
    return Entry(number=int(version.version), change=change, is_done=_DONE in version.tags)


def _counting(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the entries that count: those that are done, then those that follow in an unbroken chain."""
    num_done = max((place for place, entry in enumerate(entries, 1) if entry.is_done), default=0)
    done = [entry for entry in entries[:num_done] if entry.is_done]
    yield from done
    # The first change of all says what the champion was before there was a list.
    champion = done[-1].change.after if done else (entries[0].change.before if entries else "")
    for entry in entries[num_done:]:
        if entry.change.before == champion:
            champion = entry.change.after
            yield entry
