"""Follows aliases of the registry: when one moves, the new version is loaded beside the old one and replaces it.

A server alone changes as soon as it has loaded the new version. A replica of a fleet waits for its turn (turns.py).
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from clozeline.records.package import Precision
from clozeline.registry import models
from clozeline.registry.models import Announcement, Registered
from clozeline.registry.sources import ModelSource
from clozeline.serving.errors import Caught
from clozeline.serving.loading import LoadedModel, open_source
from clozeline.serving.models import Catalogue, Service
from clozeline.serving.queue import Plan, VersionTurns
from clozeline.system.errors import ArtifactError, TransientError
from clozeline.system.machine import give_back_freed

_LOG = logging.getLogger(__name__)
_MAX_LOOKS_LEFT_OUT = 30
_BEHIND = (logging.ERROR, "this replica answers no request until it has loaded the version of its fleet")
_BACK = (logging.INFO, "this replica answers again")


@dataclass(slots=True)
class _Followed:
    """What this server knows about one alias."""

    version: str = ""  # version behind it at the last look that got an answer
    looked_seconds: float = float("-inf")  # time of that look, in seconds since 1970
    other_seconds: float = float("-inf")  # time of the last look that found another version
    refused: str = ""  # version that could not be loaded
    looks_left: int = 0  # looks without a try to load `refused`
    looks_left_out: int = 0
    is_unknown: bool = False  # whether the registry did not answer the last look

    def found(self, version: str, seconds: float) -> None:
        if version != self.version:
            self.version, self.other_seconds = version, self.looked_seconds
        self.looked_seconds = seconds

    def is_left_out(self) -> bool:
        """Count this look; return whether the next try to load is still to come."""
        self.looks_left -= 1
        return self.version == self.refused and self.looks_left >= 0

    def refuse(self, *, is_transient: bool) -> bool:
        """Leave out one look, and twice as many after each further failure; return whether it is the first one."""
        is_first = self.refused != self.version
        self.refused = self.version
        again = 1 if is_first or is_transient else 2 * self.looks_left_out
        self.looks_left = self.looks_left_out = min(again, _MAX_LOOKS_LEFT_OUT)
        return is_first


class Watcher:
    """Polls the aliases every `interval_seconds` in its own thread."""

    def __init__(
        self,
        service: Service,
        sources: Sequence[ModelSource],
        precision: Precision | None,
        interval_seconds: float,
        live_version: Callable[[str], Registered] = models.live_version,
    ) -> None:
        self._service = service
        self._all_sources = sources
        self._sources = [source for source in sources if source.is_alias]
        self._precision = precision
        self._interval_seconds = interval_seconds
        self._live_version = live_version
        self._followed = {source.name: _Followed() for source in self._sources}
        # Number of replaced models at the last poll. Requests in progress may hold their memory a moment longer.
        self._num_swaps = 0
        self._answered = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="clozeline-watcher", daemon=True)

    def load(self) -> Catalogue:
        """Open all sources; raises what `open_source` raises."""
        return Catalogue([self._loaded(source) for source in self._all_sources])

    def start(self) -> None:
        """Start the thread if there are aliases and an interval."""
        if self._sources and self._interval_seconds:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def look(self) -> None:
        """Poll each alias once. If its new version fails, the old one stays in service, in a fleet until its turn."""
        if self._service.catalogue.num_swaps != self._num_swaps:
            self._num_swaps = self._service.catalogue.num_swaps
            give_back_freed()
        for source in self._sources:
            followed = self._followed[source.name]
            with Caught() as unknown:
                self._look_up(source)
            if unknown.error and not followed.is_unknown:
                self._log(source, "the version of its alias is unknown", unknown.error)
            followed.is_unknown = unknown.error is not None
            if unknown.error or self._is_loaded(source.name, followed.version) or followed.is_left_out():
                continue
            with Caught() as caught:
                self._load(source)
            if not caught.error:
                followed.refused = ""
            elif followed.refuse(is_transient=isinstance(caught.error, TransientError)):
                self._log(source, f"version {followed.version} cannot be served", caught.error)
                self._service.metrics.refused_version(source.name)
        self._tell()

    def _loaded(self, source: ModelSource) -> LoadedModel:
        """Return the model of `source`; in a fleet it answers from its turn on."""
        opened = open_source(source, self._precision)
        if not source.is_in_fleet:
            return opened
        while (live := self._look_up(source)).version != opened.identity.version:
            opened = open_source(source, self._precision)
        announcement = self._announcement(source, live)
        turns = VersionTurns().followed_by(live.version, announcement) if announcement else VersionTurns(live.version)
        self._service.schedule.set(source.name, Plan(turns, {live.version: opened}))
        return opened

    def _look_up(self, source: ModelSource) -> Registered:
        """Return the version behind the alias, and note when its turn is."""
        live = self._live_version(source.place)
        self._followed[source.name].found(live.version, self._service.schedule.clock())
        plan, announcement = self._service.schedule.plan(source.name), self._announcement(source, live)
        if plan and announcement:
            turns = plan.turns.followed_by(live.version, announcement)
            self._service.schedule.set(source.name, replace(plan, turns=turns))
        return live

    def _announcement(self, source: ModelSource, live: Registered) -> Announcement | None:
        """Return when the fleet answers by `live`; None: at once, when it is loaded.

        A turn that had begun before the alias moved was announced for an earlier change: someone has moved the alias in
        MLflow, without Clozeline.
        """
        given = live.announcement if source.is_in_fleet else None
        is_earlier = given and given.serve_from_seconds <= self._followed[source.name].other_seconds
        return None if is_earlier else given

    def _is_loaded(self, name: str, version: str) -> bool:
        plan = self._service.schedule.plan(name)
        return version in (plan.loaded if plan else {self._service.catalogue.named(name).identity.version})

    def _load(self, source: ModelSource) -> None:
        opened = open_source(source, self._precision)
        check_same_task(self._service.catalogue.named(source.name), opened)
        live = self._look_up(source)  # the alias may have moved while the version was loaded
        if live.version != opened.identity.version:
            return
        _LOG.info("%s: version %s is loaded", source.name, live.version)
        known = self._service.schedule.plan(source.name) if self._announcement(source, live) else None
        plan = replace(known, loaded={**known.loaded, live.version: opened}) if known else Plan.only(opened)
        self._service.schedule.set(source.name, plan)

    def _log(self, source: ModelSource, what: str, error: Exception) -> None:
        served = self._service.catalogue.named(source.name).identity.version
        _LOG.error("%s: %s; still serving version %s\n%s", source.name, what, served, error)

    def _tell(self) -> None:
        """Make the changes that are due, also without requests. Log when this replica falls behind and catches up."""
        self._service.schedule.seconds_to_wait()
        answers = self._service.schedule.answers
        if answers != self._answered:
            _LOG.log(*(_BACK if answers else _BEHIND))
        self._answered = answers

    def _watch(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            self.look()


def check_same_task(before: LoadedModel, after: LoadedModel) -> None:
    """Raise ArtifactError if the task differs: clients of `before` would get 404 from their routes."""
    given, expected = after.model.manifest.task, before.model.manifest.task
    if given != expected:
        raise ArtifactError(
            f"version {after.identity.version} of {after.identity.name} has another task: {given}, not {expected}",
            do="register it under another name, or restart the server to serve it under this name",
        )
