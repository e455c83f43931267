"""Follows aliases of the registry: when one moves, the new version is loaded beside the old one and replaces it."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clozeline import registry
from clozeline.artifacts.export.manifest import Precision
from clozeline.errors import ArtifactError
from clozeline.machine.heap import give_back_freed
from clozeline.serving.errors import Caught
from clozeline.serving.models.catalogue import Catalogue
from clozeline.serving.models.loading import open_source
from clozeline.serving.models.service import Service
from clozeline.serving.models.sources import ModelSource
from clozeline.serving.scheduling.work import LoadedModel

_LOG = logging.getLogger(__name__)
_MAX_LOOKS_LEFT_OUT = 30


@dataclass(slots=True)
class _Refused:
    """A version that could not be served (None: the registry did not answer). Retried with exponential backoff."""

    version: str | None
    looks_left: int = 1
    looks_left_out: int = 1


class AliasWatcher:
    """Polls the aliases every `interval_seconds` in its own thread."""

    def __init__(
        self,
        service: Service,
        sources: Sequence[ModelSource],
        precision: Precision | None,
        interval_seconds: float,
        live_version: Callable[[str], str] = registry.live_version,
    ) -> None:
        self._service = service
        self._all_sources = sources
        self._sources = [source for source in sources if source.is_alias]
        self._precision = precision
        self._interval_seconds = interval_seconds
        self._live_version = live_version
        self._refused: dict[str, _Refused] = {}
        self._seen: dict[str, str | None] = {}
        """Version behind each alias at the last poll; None if the registry did not answer."""
        self._swapped = False
        """Whether the last poll replaced a model. Requests in progress may have held its memory a moment longer."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="clozeline-watcher", daemon=True)

    def load(self) -> Catalogue:
        """Open all sources; raises what `open_source` raises."""
        return Catalogue([open_source(source, self._precision) for source in self._all_sources])

    def start(self) -> None:
        """Start the thread if there are aliases and an interval."""
        if self._sources and self._interval_seconds:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def look(self) -> None:
        """Poll each alias once. If its new version fails, the old one stays in service."""
        if self._swapped:
            self._swapped = False
            give_back_freed()
        for source in self._sources:
            refused = self._refused.get(source.name)
            if refused and refused.looks_left > 0:
                refused.looks_left -= 1
                continue
            self._seen[source.name] = None
            with Caught() as caught:
                self._follow(source)
            if caught.error:
                self._refuse(source, self._seen[source.name], caught.error)
            else:
                self._refused.pop(source.name, None)

    def _follow(self, source: ModelSource) -> None:
        version = self._seen[source.name] = self._live_version(source.place)
        if version == self._served_version(source):
            return
        opened = open_source(source, self._precision)
        check_same_task(self._service.catalogue.named(source.name), opened)
        self._service.swap(opened)
        self._swapped = True
        _LOG.info("%s: now serving version %s", source.name, version)

    def _served_version(self, source: ModelSource) -> str:
        return self._service.catalogue.named(source.name).identity.version

    def _refuse(self, source: ModelSource, version: str | None, error: Exception) -> None:
        """Log the failure once for each version, and double the number of polls to skip before each retry."""
        before = self._refused.get(source.name)
        if before and before.version == version:
            before.looks_left_out = min(2 * before.looks_left_out, _MAX_LOOKS_LEFT_OUT)
            before.looks_left = before.looks_left_out
            return
        self._refused[source.name] = _Refused(version)
        what = f"version {version} cannot be served" if version else "the version of its alias is unknown"
        _LOG.error("%s: %s; still serving version %s\n%s", source.name, what, self._served_version(source), error)
        if version:
            self._service.metrics.refused_version(source.name)

    def _watch(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            self.look()


def check_same_task(before: LoadedModel, after: LoadedModel) -> None:
    """Raise ArtifactError if the task differs: clients of `before` would get 404 from their routes."""
    given, expected = after.model.manifest.task, before.model.manifest.task
    if given != expected:
        raise ArtifactError(
            f"version {after.identity.version} of {after.identity.name} has another task",
            given=given,
            expected=f"{expected}, the task of version {before.identity.version}",
            do="register it under another name, or restart the server to serve it under this name",
        )
