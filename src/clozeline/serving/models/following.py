"""Polls the records of the fleets that this server belongs to, and keeps the served models and the gate in step."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

from clozeline import registry
from clozeline.artifacts.export.manifest import Precision
from clozeline.errors import ParamsError
from clozeline.machine.heap import give_back_freed
from clozeline.registry.fleet import Fleet
from clozeline.registry.rollout import Replica
from clozeline.serving.errors import Caught
from clozeline.serving.models.catalogue import Catalogue
from clozeline.serving.models.fleet import Effects, Member
from clozeline.serving.models.gate import State
from clozeline.serving.models.loading import open_source
from clozeline.serving.models.peers import life
from clozeline.serving.models.service import Service
from clozeline.serving.models.sources import ModelSource

_LOG = logging.getLogger(__name__)
_HELD_SECONDS: Final = 0.2
"""Interval between polls while requests wait, or are about to."""
_LOADING_SECONDS: Final = 0.5
"""Interval between polls while a replica loads a new version."""
_LEAVING_SECONDS: Final = 5.0
_STATES: Final[tuple[State, ...]] = ("behind", "held", "open")


class FleetWatcher:
    """Polls every `interval_seconds` in its own thread, and more often while a version changes."""

    def __init__(
        self,
        service: Service,
        sources: Sequence[ModelSource],
        precision: Precision | None,
        interval_seconds: float,
        url: str,
        record_of: Callable[[str], Fleet],
    ) -> None:
        """`url`: address of this replica for the others. `record_of` opens the record of the model of a name."""
        self._service = service
        self._sources = sources
        self._precision = precision
        self._interval_seconds = interval_seconds
        self._me = Replica(key=uuid4().hex, url=url)
        self._catalogue: Catalogue | None = None
        self._has_failed = False
        self._swapped = False
        self._stop = threading.Event()
        effects = Effects(self._offer, self._move_gate, service.metrics.refused_version)
        self._members = [
            Member(source, record_of(source.registered_name), self._me, precision, effects)
            for source in sources
            if source.is_champion
        ]

    def load(self) -> Catalogue:
        """Join the fleets; return the models once each champion is in the version of its fleet.

        Raises:
            ParamsError: the others cannot reach this replica at its address.
            ArtifactError, TransientError: see `open_source`.
        """
        self._service.replica = self._me.key
        self._move_gate()
        if life(self._me) != "alive":
            raise _unreachable(self._me.url)
        models = {
            source.name: open_source(source, self._precision) for source in self._sources if not source.is_champion
        }
        for member in self._members:
            registry.live_version(member.source.place)  # raises if there is no champion
            member.join()
        while any(member.state != "open" for member in self._members) and self._service.phase != "stopping":
            self._poll()
            fault = next((member.fault for member in self._members if member.fault), None)
            if fault:
                raise fault
            self._stop.wait(0 if all(member.state == "open" for member in self._members) else _LOADING_SECONDS)
        models |= {member.source.name: member.current for member in self._members if member.current}
        self._catalogue = Catalogue([models[source.name] for source in self._sources if source.name in models])
        return self._catalogue

    def start(self) -> None:
        """Follow the records from now on."""
        threading.Thread(target=self._watch, name="clozeline-watcher", daemon=True).start()

    def look(self) -> None:
        """Poll once. If the registry does not answer, everything stays as it is."""
        if self._swapped:
            self._swapped = False
            give_back_freed()
        with Caught() as caught:
            self._poll()
        if caught.error and not self._has_failed:
            _LOG.error("the record of the fleet cannot be read or written; nothing changes\n%s", caught.error)
        self._has_failed = caught.error is not None

    def stop(self) -> None:
        """Remove this replica from the records, if the registry answers within 5 s: it stops."""
        self._stop.set()
        leaving = threading.Thread(target=self._leave, daemon=True)
        leaving.start()
        leaving.join(_LEAVING_SECONDS)

    def _leave(self) -> None:
        with Caught() as caught:
            for member in self._members:
                member.leave()
        if caught.error:
            _LOG.warning("this replica stays in the record of its fleet until another finds it dead\n%s", caught.error)

    def _poll(self) -> None:
        if self._service.phase == "stopping":
            if self._service.gate.state == "held":  # the requests that wait are sent to other replicas
                self._service.gate.set("behind")
            return
        for member in self._members:
            member.prepare()
            member.act()

    def _watch(self) -> None:
        while not self._stop.wait(self._seconds_to_next()):
            self.look()

    def _seconds_to_next(self) -> float:
        rollouts = [member.rollout for member in self._members]
        if any(member.state == "held" for member in self._members):
            return min(_HELD_SECONDS, self._interval_seconds)
        is_settled = all(rollout.is_settled for rollout in rollouts) and self._service.gate.state == "open"
        if is_settled or self._has_failed:
            return self._interval_seconds
        is_soon = not any(rollout.awaited for rollout in rollouts)
        return min(_HELD_SECONDS if is_soon else _LOADING_SECONDS, self._interval_seconds)

    def _offer(self, member: Member) -> None:
        current = member.current
        if self._catalogue is None or current is None:
            return
        name = member.source.name
        if self._catalogue.named(name) is not current:
            self._service.swap(current)
            self._swapped = True
        others = [model for model in member.versions.loaded.values() if model is not current]
        self._catalogue.keep_beside(name, others, member.coming)

    def _move_gate(self) -> None:
        self._service.gate.set(min((member.state for member in self._members), key=_STATES.index))


def _unreachable(url: str) -> ParamsError:
    return ParamsError(
        "this replica does not answer at the address that the other replicas would use",
        given=f"{url}/health/live",
        expected="the address of this server",
        do="correct --fleet, or --host: 127.0.0.1 is for this machine only, 0.0.0.0 for others",
    )
