"""State that all requests share: the loaded models, the scheduler with its workers, and the phase of the server."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from clozeline.serving import DEFAULT_TIMEOUT_SECONDS
from clozeline.serving.errors import ApiError, not_ready
from clozeline.serving.models.answer_cache import AnswerCache
from clozeline.serving.models.catalogue import Catalogue
from clozeline.serving.models.given_answers import GivenAnswers
from clozeline.serving.models.turns import Schedule
from clozeline.serving.observe.metrics import Metrics
from clozeline.serving.observe.tracing import NoTracing, Tracing
from clozeline.serving.scheduling.admission import Admission
from clozeline.serving.scheduling.asking import Asking, deliver
from clozeline.serving.scheduling.scheduler import Scheduler
from clozeline.serving.scheduling.window import BATCH_TOKENS
from clozeline.serving.scheduling.work import LoadedModel
from clozeline.serving.scheduling.workers import Workers

Phase = Literal["loading", "ready", "stopping"]

_LOG = logging.getLogger(__name__)

_STALL_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limits of the work that runs at once, and of the work that may wait."""

    num_workers: int
    admission: Admission = field(default_factory=Admission)
    batch_tokens: int = BATCH_TOKENS
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Timeout of a request that sets none itself."""
    cache_bytes: int = 0
    """Size of the cache of answers; 0: no cache."""


class Service:
    """The phase is loading until `open`, and stopping after `drain`. Accepted requests are answered even then."""

    def __init__(self, capacity: Capacity, tracing: Tracing | None = None) -> None:
        self.scheduler = Scheduler(
            capacity.num_workers, deliver, admission=capacity.admission, batch_tokens=capacity.batch_tokens
        )
        self.metrics = Metrics(capacity.num_workers, lambda: self.scheduler.waiting_tokens)
        self.workers = Workers(self.scheduler, capacity.num_workers, self.metrics.ran)
        self.tracing = tracing or NoTracing()
        self.asking = Asking(self.scheduler, self.metrics, self.tracing, capacity.timeout_seconds)
        self.batch_tokens = capacity.batch_tokens
        self.cache = AnswerCache(capacity.cache_bytes)
        self.given = GivenAnswers()
        self.schedule = Schedule(self._offer)
        self._catalogue: Catalogue | None = None
        self._stopping = False

    def open(self, catalogue: Catalogue) -> None:
        """Answer with these models from now on."""
        for served in catalogue:
            self.metrics.serves(served.identity)
        self._catalogue = catalogue

    def swap(self, served: LoadedModel) -> None:
        """Answer with `served` from now on instead of the model of its name."""
        self.metrics.serves(served.identity, instead_of=self.catalogue.swap(served))

    async def turn(self) -> None:
        """Change to the version whose turn it is, before the answer to a request that names no version.

        Raises:
            ApiError: 503, that version is not loaded.
        """
        seconds = self.schedule.seconds_to_wait()
        if not self.schedule.answers:
            raise self.not_ready()
        if seconds > 0:
            await asyncio.sleep(seconds)

    def _offer(self, name: str, served: LoadedModel, others: Sequence[LoadedModel], coming: Collection[str]) -> None:
        if self._catalogue is None:
            return
        if self._catalogue.named(name) is not served:
            self.swap(served)
            _LOG.info("%s: now serving version %s", name, served.identity.version)
        self._catalogue.keep_beside(name, others, coming)

    def drain(self) -> None:
        """Report not ready from now on. Accepted requests are still answered."""
        self._stopping = True

    def close(self) -> None:
        """Drain, and end the threads after the admitted work."""
        self.drain()
        self.workers.close()
        self.asking.close()
        self.tracing.close()

    @property
    def phase(self) -> Phase:
        if self._stopping:
            return "stopping"
        return "loading" if self._catalogue is None or not self.schedule.is_ready else "ready"

    @property
    def catalogue(self) -> Catalogue:
        """The loaded models.

        Raises:
            ApiError: 503, the models are not loaded yet.
        """
        if self._catalogue is None:
            raise self.not_ready()
        return self._catalogue

    def fault(self) -> str | None:
        """Return what is wrong with the workers, if anything. Only a restart helps."""
        return self.workers.fault(_STALL_SECONDS)

    def not_ready(self) -> ApiError:
        return not_ready(self.phase)
