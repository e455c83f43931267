"""What requests share: the models once they are loaded, the way to the workers, and whether to send requests here."""

from dataclasses import dataclass, field
from typing import Literal

from clozeline.serving import DEFAULT_TIMEOUT_SECONDS
from clozeline.serving.errors import ApiError, not_ready
from clozeline.serving.models.answer_cache import AnswerCache
from clozeline.serving.models.catalogue import Catalogue
from clozeline.serving.observe.metrics import Metrics
from clozeline.serving.observe.tracing import NoTracing, Tracing
from clozeline.serving.scheduling.admission import Admission
from clozeline.serving.scheduling.asking import Asking, deliver
from clozeline.serving.scheduling.scheduler import Scheduler
from clozeline.serving.scheduling.window import BATCH_TOKENS
from clozeline.serving.scheduling.work import LoadedModel
from clozeline.serving.scheduling.workers import Workers

Phase = Literal["loading", "ready", "stopping"]

_STALL_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much is done at once, and how much may wait."""

    num_workers: int
    admission: Admission = field(default_factory=Admission)
    batch_tokens: int = BATCH_TOKENS
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Of a request that says none itself."""
    cache_bytes: int = 0
    """Of answers that are kept, to be given again; 0: none."""


class Service:
    """Loading until `open` gives it models, stopping once `drain` was called; answers in between and while it stops."""

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

    def drain(self) -> None:
        """Say not ready from now on; what has been accepted is still answered."""
        self._stopping = True

    def close(self) -> None:
        """End the worker threads, after what they have begun."""
        self.drain()
        self.workers.close()
        self.asking.close()
        self.tracing.close()

    @property
    def phase(self) -> Phase:
        if self._stopping:
            return "stopping"
        return "loading" if self._catalogue is None else "ready"

    @property
    def catalogue(self) -> Catalogue:
        """The models.

        Raises:
            ApiError: 503, they are not loaded yet.
        """
        if self._catalogue is None:
            raise self.not_ready()
        return self._catalogue

    def fault(self) -> str | None:
        """What is wrong with the workers, if anything is: only a restart mends it."""
        return self.workers.fault(_STALL_SECONDS)

    def not_ready(self) -> ApiError:
        return not_ready(self.phase)
