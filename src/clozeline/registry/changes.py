"""The list of changes of a champion: who changed it, when and why; and MLflow's errors as Clozeline's.

MLflow has neither transactions nor locks, and the last writer of an alias wins. But it gives each version number of a
registered model once. A change of the champion of `NAME` is therefore first appended as the next version of the
registered model `NAME.changes`, with the champion that it replaces. Everyone who reads the list comes to the same
result: a change counts only if that champion was still the champion. The aliases are written afterwards, from the list,
which is the audit record too. A lock in MLflow would need a lease, and a holder that stalls for longer than its lease
writes all the same.
"""

import getpass
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from uuid import uuid4

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from pydantic import BaseModel, ConfigDict, Field

from clozeline.system.errors import TransientError
from clozeline.tracking.mlflow import every, is_busy

_TRIES = 10
# Suffix of the name of a registered model that lists the changes of another model's champion as its versions.
SUFFIX = ".changes"
_CHANGE = "clozeline.change"
_DONE = "clozeline.done"
_PAGE = 1000
# `by hand`: someone moved the alias in MLflow, without Clozeline.
Kind = Literal["promotion", "rollback", "undo", "by hand"]


def tried_again(call: Callable[[], object]) -> None:
    """Call until MLflow's database is not busy with the same rows, at most ten times; raises MLflow's errors."""
    for is_last_try in (*[False] * (_TRIES - 1), True):
        try:
            call()
            return
        except MlflowException as error:
            if is_last_try or not is_busy(error):
                raise
        time.sleep(random.uniform(0.1, 1.0))


def create_model(client: MlflowClient, name: str, description: str | None = None) -> None:
    """Create the registered model `name` if it is missing; raises MLflow's errors."""
    try:
        client.create_registered_model(name, description=description)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


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
    before: str  # version that it replaces as champion; empty for a model without a champion
    after: str  # version that becomes the champion; empty if a champion was withdrawn by hand
    why: str = ""
    evidence: str = ""  # address of the record that the decision was taken on
    who: str = Field(default_factory=who)
    when: datetime = Field(default_factory=lambda: datetime.now(UTC))
    # Identity by which its author finds it, also if MLflow's client sent it twice.
    key: str = Field(default_factory=lambda: uuid4().hex)
    number: int = Field(default=0, exclude=True)  # its place in the list; it and the next are not part of the record
    is_done: bool = Field(default=False, exclude=True)  # whether the aliases were written

    def __str__(self) -> str:
        versions = f"version {self.before or 'none'} to {self.after or 'none'}"
        return f"{self.when:%Y-%m-%d %H:%M} {self.kind}, {versions}, by {self.who}: {self.why or 'no reason given'}"


class ChampionChangedError(TransientError):
    """Someone else changed the champion first."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one model's champion that count, oldest first."""

    entries: tuple[Change, ...]

    @property
    def last(self) -> Change | None:
        return self.entries[-1] if self.entries else None

    @property
    def pending(self) -> tuple[Change, ...]:
        """Changes whose aliases are not written yet."""
        return tuple(entry for entry in self.entries if not entry.is_done)

    def rolled_back_since(self, number: int) -> dict[str, bool]:
        """Return, for the versions that changes from `number` on touched, whether they are rolled back now."""
        marks: dict[str, bool] = {}
        for change in self.entries:
            if change.number < number:
                continue
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
        searched = (f"name = '{name}{SUFFIX}'", _PAGE, ["version_number ASC"])
        found = every(self._client.search_model_versions, *searched)
        entries = [
            Change.model_validate_json(one.tags[_CHANGE]).model_copy(
                update={"number": int(one.version), "is_done": _DONE in one.tags}
            )
            for one in found
            if _CHANGE in one.tags
        ]
        return Changes(tuple(_counting(sorted(entries, key=lambda entry: entry.number))))

    def append(self, name: str, change: Change, source: str, run_id: str) -> None:
        """Append `change`; `source` and `run_id` are those of the version that it is about.

        Raises:
            ChampionChangedError: the champion is no longer the one that it replaces; nothing was changed.
        """
        changes = self.read(name)
        if changes.last is None:
            # First, because a server with accounts answers 403, not 404, to a version of a model that does not exist.
            create_model(self._client, f"{name}{SUFFIX}", "Who changed the champion, when and why")
        if changes.last is None or changes.last.after == change.before:
            self._create(name, change, source, run_id)
            changes = self.read(name)
        if not any(entry.key == change.key for entry in changes.entries):
            last = changes.last
            raise ChampionChangedError(
                f"the champion of {name} is now {last or 'unrecorded'}, not {change.before or 'none'}",
                do="look at it (`clozeline history`), then type the command again",
            )

    def done(self, name: str, entries: Sequence[Change]) -> None:
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


def _counting(entries: Sequence[Change]) -> Iterator[Change]:
    """Yield the entries that count: those that are done, then those that follow in an unbroken chain."""
    num_done = max((place for place, entry in enumerate(entries, 1) if entry.is_done), default=0)
    done = [entry for entry in entries[:num_done] if entry.is_done]
    yield from done
    # The first change of all says what the champion was before there was a list.
    champion = done[-1].after if done else (entries[0].before if entries else "")
    for entry in entries[num_done:]:
        if entry.before == champion:
            champion = entry.after
            yield entry
