"""The rollout of a model over the replicas of a fleet: which entries of its record count, and which entry comes next.

The record has two parts. Its *entries* are an append-only list, the same for everyone: `serve 1`, `hold 2`, `serve 2`.
Its *replicas* are notes, each written by one replica about itself. No clock is compared with that of another machine:

- Any replica appends `hold` once every answering replica has loaded the champion. From a `hold` on, replicas let
  requests wait.
- Any replica appends `serve` once every answering replica has noted that it holds. So no replica answers by the new
  version while another still answers by the old one.
- A replica notes that it answers *before* it reads the entries for the last time, and whoever appends an entry reads
  the notes *after* the entries. So a replica that joins is either waited for, or knows of the `hold`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Entry(BaseModel):
    """A step of the whole fleet. Its record in MLflow is written once and never changed."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # later versions may record more

    kind: Literal["serve", "hold"]
    """`serve`: answer by this version. `hold`: let requests wait, because this version is about to answer."""
    version: str
    after: int
    """Number of the entry that it follows, 0 for the first: it counts only if that is the last entry that counts."""
    why: str = ""
    when: datetime = Field(default_factory=lambda: datetime.now(UTC))

    def __str__(self) -> str:
        return f"{self.when:%Y-%m-%d %H:%M:%S} {self.kind} version {self.version}: {self.why}"


class Replica(BaseModel):
    """What one replica notes about itself."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str
    """Identity of the process."""
    url: str
    """Address at which the other replicas reach it."""
    answers: str = ""
    """Version that answers, or that held requests wait for; empty: it answers nothing before its next look."""
    loaded: tuple[str, ...] = ()
    held: int = 0
    """Number of the `hold` since which its requests wait; 0: none."""
    problem: str = ""
    """Why it cannot load the version that it should."""

    def reason_to_wait(self, wanted: str) -> str:
        """Return why the fleet waits for it to load version `wanted`."""
        return f"cannot load version {wanted}: {self.problem}" if self.problem else f"loads version {wanted}"


@dataclass(frozen=True, slots=True)
class Rollout:
    """The record of one model, as it was read."""

    champion: str = ""
    """Version that the fleet should serve; empty if the model has no champion."""
    number: int = 0
    """Number of the last entry that counts; 0: there is none."""
    last: Entry | None = None
    serving: str = ""
    """Version of the last `serve` that counts."""
    replicas: tuple[Replica, ...] = field(default=())

    @classmethod
    def of(
        cls,
        entries: Iterable[tuple[int, Entry]],
        replicas: Sequence[Replica],
        champion: str,
        known: "Rollout | None" = None,
    ) -> "Rollout":
        """Return the record with these entries, each with its number; `known` is what the entries before them gave."""
        known = known or cls()
        number, last, serving = known.number, known.last, known.serving
        for place, entry in sorted(entries, key=lambda numbered: numbered[0]):
            if entry.after == number:
                number, last = place, entry
                serving = entry.version if entry.kind == "serve" else serving
        return cls(champion, number, last, serving, tuple(replicas))

    @property
    def is_held(self) -> bool:
        return self.last is not None and self.last.kind == "hold"

    @property
    def is_settled(self) -> bool:
        """Whether the fleet serves the champion, and nothing else is under way."""
        return not self.is_held and self.serving == self.champion

    @property
    def awaited(self) -> tuple[Replica, ...]:
        """Answering replicas that the next entry waits for."""
        answering = tuple(replica for replica in self.replicas if replica.answers)
        if self.is_held:
            return tuple(replica for replica in answering if replica.held != self.number)
        if self.is_settled:
            return ()
        return tuple(replica for replica in answering if self.champion not in replica.loaded)

    def next_entry(self, *, held_too_long: bool = False) -> Entry | None:
        """Return the entry that any replica may append now; None: there is nothing to do, or a replica is awaited.

        `held_too_long`: give a `hold` up although replicas are awaited.
        """
        if not self.champion and not self.is_held:
            return None
        if self.last is None:
            return self._entry("serve", self.champion, "the first version of this fleet")
        if not self.is_held:
            is_due = not self.is_settled and not self.awaited
            return self._entry("hold", self.champion, "every replica has loaded it") if is_due else None
        if self.champion != self.last.version:
            return self._entry("serve", self.serving, f"the champion is no longer version {self.last.version}")
        if not self.awaited:
            return self._entry("serve", self.champion, "every replica holds")
        if held_too_long:
            given = ", ".join(replica.url for replica in self.awaited)
            return self._entry("serve", self.serving, f"these replicas did not hold in time: {given}")
        return None

    def without(self, keys: Iterable[str]) -> "Rollout":
        """Return the same record without these replicas."""
        gone = frozenset(keys)
        left = tuple(replica for replica in self.replicas if replica.key not in gone)
        return Rollout(self.champion, self.number, self.last, self.serving, left)

    def _entry(self, kind: Literal["serve", "hold"], version: str, why: str) -> Entry:
        return Entry(kind=kind, version=version, after=self.number, why=why)
