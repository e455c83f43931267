"""The loaded versions of one model of a fleet. They load in a thread, so that the polls of the record go on."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from clozeline.errors import ClozelineError, TransientError
from clozeline.serving.errors import Caught
from clozeline.serving.models.watching import check_same_task
from clozeline.serving.scheduling.work import LoadedModel

_LOG = logging.getLogger(__name__)
_PAUSE_SECONDS: Final = 30.0
_SHORT_PAUSE_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 600.0

Open = Callable[[str], LoadedModel]
"""Opens the version of this number; raises what `open_source` raises."""


class Pause:
    """A time to wait, twice as long after each failure. The first one is short if it `is_short`."""

    def __init__(self, *, is_short: bool = False) -> None:
        self._seconds, self._until = _SHORT_PAUSE_SECONDS if is_short else _PAUSE_SECONDS, 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    def begin(self) -> None:
        self._until = time.monotonic() + self._seconds
        self._seconds = min(2 * self._seconds, _MAX_PAUSE_SECONDS)

    def reset(self) -> None:
        self._seconds, self._until = _PAUSE_SECONDS, 0.0


@dataclass(slots=True)
class _Load:
    version: str
    model: LoadedModel | None = None
    error: Exception | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class Versions:
    """Loaded models by version. Only one version loads at a time; a version that cannot be loaded is tried again."""

    def __init__(self, name: str, open_version: Open, refused: Callable[[], None]) -> None:
        """`refused` is called once for each version that cannot be loaded."""
        self.loaded: Mapping[str, LoadedModel] = {}
        self.error: Exception | None = None
        """Why version `refused` cannot be loaded."""
        self.refused = ""
        self._name = name
        self._open = open_version
        self._tell_refused = refused
        self._load: _Load | None = None
        self._retry = Pause()

    def keep(self, versions: Collection[str]) -> None:
        """Let go of the other versions."""
        self.loaded = {version: model for version, model in self.loaded.items() if version in versions}

    def load(self, version: str) -> None:
        """Begin to load `version`, unless a load is under way, or failed a moment ago."""
        if self._load or (version == self.refused and not self._retry.is_over):
            return
        self._load = _Load(version)
        threading.Thread(target=self._run, args=(self._load,), name="clozeline-load", daemon=True).start()

    def settle(self) -> None:
        """Take over the version whose load has ended, if any."""
        load = self._load
        if load is None or not load.ended.is_set():
            return
        self._load = None
        if load.model:
            _LOG.info("%s: version %s is loaded", self._name, load.version)
            self.loaded = {**self.loaded, load.version: load.model}
            self.refused, self.error = "", None
            return
        self.error = load.error
        if load.version != self.refused:
            # A registry that was away for a moment is back when the next poll gets this far.
            self._retry = Pause(is_short=isinstance(load.error, TransientError))
            _LOG.error("%s: version %s cannot be served\n%s", self._name, load.version, load.error)
            self._tell_refused()
        self.refused = load.version
        self._retry.begin()

    def problem(self, wanted: Collection[str]) -> str:
        """Return why one of the `wanted` versions cannot be loaded; empty if no load has failed."""
        if self.error is None or self.refused not in wanted:
            return ""
        return self.error.cause if isinstance(self.error, ClozelineError) else str(self.error)

    def _run(self, load: _Load) -> None:
        with Caught() as caught:
            opened = self._open(load.version)
            for other in self.loaded.values():
                check_same_task(other, opened)
            load.model = opened
        load.error = caught.error
        load.ended.set()
