"""One replica of a fleet: it loads new champions beside the old version, and changes to them together with the others.

`registry/rollout.py` says which step comes next; this module loads, closes the gate, and tells the record.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from clozeline.artifacts.export.manifest import Precision
from clozeline.errors import TransientError
from clozeline.registry.fleet import Fleet
from clozeline.registry.rollout import Replica, Rollout
from clozeline.serving.models.gate import State
from clozeline.serving.models.loading import open_source
from clozeline.serving.models.peers import Peers
from clozeline.serving.models.sources import REGISTRY_SCHEME, ModelSource
from clozeline.serving.models.versions import Pause, Versions
from clozeline.serving.scheduling.work import LoadedModel

_LOG = logging.getLogger(__name__)
_HOLD_SECONDS: Final = 5.0
"""Time after which a `hold` is given up, by the clock of this machine."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What a member does to its server."""

    offer: Callable[["Member"], None]
    """Answers by the current model of the member, and by its others if a request names them."""
    move_gate: Callable[[], None]
    """Moves the gate to where the states of all members want it."""
    refused: Callable[[str], None]
    """Counts a version of the model of this name that cannot be loaded."""


class Member:
    """This replica in the fleet of one model. It is polled: `prepare`, then `act`."""

    def __init__(
        self, source: ModelSource, record: Fleet, me: Replica, precision: Precision | None, effects: Effects
    ) -> None:
        self.source = replace(source, is_in_fleet=True)
        self.state: State = "behind"
        self.rollout = Rollout()
        self.versions = Versions(source.name, self._open, lambda: effects.refused(source.name))
        self._record = record
        self._me = me
        self._noted: Replica | None = None
        self._precision = precision
        self._effects = effects
        self._peers = Peers()
        self._next_hold = Pause()
        self._entry_seen_seconds = 0.0
        """When this replica saw the last entry first, by its clock."""
        self._told = ""

    @property
    def current(self) -> LoadedModel | None:
        """The model that answers requests that name no version."""
        return self.versions.loaded.get(self._me.answers)

    @property
    def coming(self) -> frozenset[str]:
        """Versions that the record names and that are not loaded yet."""
        return self._wanted - self.versions.loaded.keys()

    @property
    def fault(self) -> Exception | None:
        """Why the version of the fleet cannot be loaded, if it cannot."""
        is_needed = self.state == "behind" and self.versions.refused == self.rollout.serving
        return self.versions.error if is_needed else None

    @property
    def _wanted(self) -> frozenset[str]:
        return frozenset({self.rollout.serving, self.rollout.champion}) - {""}

    def join(self) -> None:
        """Create the record if it is missing. Raises what `Fleet.create` raises."""
        self._record.create()

    def leave(self) -> None:
        """Remove this replica from the record. Raises what `Fleet.remove` raises."""
        self._record.remove(self._me.key)

    def prepare(self) -> None:
        """Read the record, and begin to load a version that it names. Raises what `Fleet.read` raises."""
        self._read()
        self.versions.settle()
        self._let_go()
        for version in sorted(self.coming, key=lambda version: version != self.rollout.serving):
            self.versions.load(version)

    def act(self) -> None:
        """Note where this replica stands, and append the next entry if it is time. Raises what `Fleet.read` raises."""
        if self._noted and self._noted.key not in {replica.key for replica in self.rollout.replicas}:
            _LOG.warning("%s: another replica took this one for dead; it joins again", self.source.name)
            self._move("behind")
            self._noted = None
        if self.rollout.is_held:
            self._move("held" if self.state == "open" else self.state)
            self._note(held=self.rollout.number)
        elif self.rollout.serving in self.versions.loaded:
            self._answer(self.rollout.serving)
        else:
            self._move("behind")
            self._note(answers="")
        self._append()

    def _read(self) -> None:
        before, self.rollout = self.rollout, self._record.read(self.rollout)
        if self.rollout.number != before.number:
            self._entry_seen_seconds = time.monotonic()
            given_up = before.last if before.is_held and not self.rollout.is_held else None
            if given_up and given_up.version == self.rollout.champion != self.rollout.serving:
                self._next_hold.begin()
        if self.rollout.is_settled:
            self._next_hold.reset()

    def _let_go(self) -> None:
        self.versions.keep(self._wanted | {self._me.answers})
        self._effects.offer(self)

    def _open(self, version: str) -> LoadedModel:
        # By its alias, if it has it: that also removes the copies of versions that no alias names any more.
        name, is_champion = self.source.registered_name, version == self.rollout.champion
        place = self.source.place if is_champion else f"{REGISTRY_SCHEME}{name}/{version}"
        opened = open_source(replace(self.source, place=place), self._precision)
        if opened.identity.version != version:
            raise TransientError(
                f"the champion of {name} changed while it was loaded",
                given=f"version {opened.identity.version}",
                expected=f"version {version}",
                do="nothing: the new champion is loaded next",
            )
        return opened

    def _answer(self, version: str) -> None:
        """Answer by `version`, unless the record changes between this replica's note and its last look."""
        if self.state == "open" and self._me.answers == version:
            self._note()
            return
        if self._noted is None:
            self._bury(self.rollout.replicas)
        self._note(answers=version, held=0)
        seen = self.rollout.number
        self._read()
        if self.rollout.number == seen:
            self._let_go()
            self._move("open")
            _LOG.info("%s: now serving version %s", self.source.name, version)

    def _move(self, state: State) -> None:
        if state != self.state:
            self.state = state
            self._effects.move_gate()

    def _note(self, **changes: object) -> None:
        """Write what has changed about this replica. Its gate is already where the note says."""
        loaded, problem = tuple(sorted(self.versions.loaded)), self.versions.problem(self._wanted)
        self._me = self._me.model_copy(update={"loaded": loaded, "problem": problem, **changes})
        if self._me != self._noted:
            self._record.note(self._me)
            self._noted = self._me

    def _append(self) -> None:
        """Append the next entry if no living replica is awaited."""
        if any(replica.key == self._me.key for replica in self.rollout.awaited):
            return
        rollout = self.rollout.without(self._bury(self.rollout.awaited))
        self._tell(rollout)
        has_waited_seconds = time.monotonic() - self._entry_seen_seconds
        entry = rollout.next_entry(held_too_long=has_waited_seconds > _HOLD_SECONDS)
        if entry and (entry.kind == "serve" or self._next_hold.is_over):
            _LOG.info("%s: %s version %s: %s", self.source.name, entry.kind, entry.version, entry.why)
            self._record.append(entry)

    def _bury(self, replicas: tuple[Replica, ...]) -> list[str]:
        """Remove those of `replicas` that are dead; return their keys."""
        dead = self._peers.dead(replica for replica in replicas if replica.key != self._me.key)
        for replica in dead:
            _LOG.warning("%s: the replica %s is dead", self.source.name, replica.url)
            self._record.remove(replica.key)
        return [replica.key for replica in dead]

    def _tell(self, rollout: Rollout) -> None:
        """Log, once, which replicas the fleet waits for."""
        waits = "; ".join(f"{one.url} {one.reason_to_wait(rollout.champion)}" for one in rollout.awaited)
        if waits and waits != self._told and not rollout.is_held:
            _LOG.info("%s: the fleet waits: %s", self.source.name, waits)
        self._told = waits
