"""The served models, the choice of the model that answers a request, and the state that all requests share.

The state is the loaded models, the scheduler with its workers, the phase of the server, and two memories of answers: a
cache by the exact bytes of the body, which is off by default and in every benchmark, and the hashes of recent answers
by request id, which are scored when feedback arrives. No text is kept.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from cachetools import FIFOCache, LRUCache

from clozeline.inference.open_model import OpenModel
from clozeline.serving import asking, loading, metrics, queue, scheduler
from clozeline.serving.admission import Admission
from clozeline.serving.errors import DEFAULT_TIMEOUT_SECONDS, ApiError, not_ready, problem
from clozeline.serving.tracing import Tracing

Model = TypeVar("Model", bound=OpenModel)

# Path of the list of names, for clients whose protocol has no list.
LIST = "/models"
# Path, body, and number of model swaps so far, so that answers of a replaced model are not found.
Key = tuple[str, bytes, int]
# Header with the id of a request whose answer /feedback can score.
REQUEST_ID = "x-request-id"
_MOST_REQUESTS = 10_000
Phase = Literal["loading", "ready", "stopping"]
_LOG = logging.getLogger(__name__)
_STALL_SECONDS = 120.0


@dataclass(frozen=True, slots=True, eq=False)
class Ability(Generic[Model]):
    """Requirement that a model has to meet to answer a request, and the choice of the default among several such
    models."""

    model: type[Model]
    has: Callable[[Model], bool] = lambda model: True  # whether a model of the class has the ability
    rank: Callable[[Model], int] = lambda model: 0  # the model of the lowest rank is the default; of equals, the first
    missing: str = "answers {route}"  # end of the error "no served model …"
    expected: str = "a model that answers {route}"
    do: str = "start the server with such a model: `clozeline serve --help`"

    def of(self, served: loading.LoadedModel) -> loading.ServedModel[Model] | None:
        """Return the model of `served` if it has this ability, else None."""
        model = served.model
        if isinstance(model, self.model) and self.has(model):
            return loading.ServedModel(served.identity, model)
        return None


ANY = Ability(OpenModel, missing="is served")  # type: ignore[type-abstract]  # isinstance takes any class


class Catalogue:
    """The models by name, in the given order. Without a name, the first model that can answer does."""

    def __init__(self, models: Sequence[loading.LoadedModel]) -> None:
        self._models = {served.identity.name: served for served in models}
        assert len(self._models) == len(models), "parse_sources refuses duplicate names"
        # Other versions by name and version; they answer requests that name them.
        self._beside: dict[str, dict[str, loading.LoadedModel]] = {}
        self._coming: dict[str, Collection[str]] = {}
        self.num_swaps = 0

    def __iter__(self) -> Iterator[loading.LoadedModel]:
        return iter(list(self._models.values()))

    def named(self, name: str) -> loading.LoadedModel:
        return self._models[name]

    def able(self, ability: Ability[Model]) -> list[loading.ServedModel[Model]]:
        """Return the models of this ability, the default one first."""
        able = [one for served in self if (one := ability.of(served))]
        return sorted(able, key=lambda one: ability.rank(one.model))

    def answering(
        self, ability: Ability[Model], name: str | None = None, *, route: str = "", listed: str = LIST
    ) -> loading.ServedModel[Model]:
        """Return the model of this ability called `name`; without a name, the default one.

        Raises:
            ApiError: 404, no such model. The error names `route`; if a model could answer, it points to `listed`.
        """
        able = self.able(ability)
        for served in able:
            if name in (None, served.identity.name):
                return served
        raise no_such_model(name, [one.identity.name for one in able], ability, route=route, listed=listed)

    def pinned(self, name: str, version: str, ability: Ability[Model]) -> loading.ServedModel[Model]:
        """Return this version of the model called `name`.

        Raises:
            ApiError: 503, it will be here in a moment; 409, it is not served here.
        """
        others = self._beside.get(name, {})
        found = ability.of(others[version]) if version in others else None
        if found:
            return found
        served = ", ".join([self._models[name].identity.version, *others])
        raise _no_such_version(name, version, served, is_coming=version in self._coming.get(name, ()))

    def keep_beside(self, name: str, others: Sequence[loading.LoadedModel], coming: Collection[str] = ()) -> None:
        """Let exactly these other versions of `name` answer requests that name them; `coming` are not loaded yet."""
        self._coming[name] = coming
        self._beside[name] = {served.identity.version: served for served in others}

    def swap(self, served: loading.LoadedModel) -> loading.Identity:
        """Replace the model of the same name by `served`; return its identity. Requests that have begun keep it."""
        before = self._models[served.identity.name].identity
        self._models[served.identity.name] = served
        self.num_swaps += 1
        return before


def _no_such_version(name: str, version: str, served: str, *, is_coming: bool) -> ApiError:
    return problem(
        503 if is_coming else 409,
        "version_not_loaded" if is_coming else "other_version",
        f"{name} is not served in that version" + (" yet" if is_coming else ""),
        given=f"{loading.VERSION}: {version}",
        expected=f"one of: {served}",
        do="send the request again"
        if is_coming
        else "make vectors that are compared with each other by one version: "
        "begin again with the served one, or serve that version beside it (`clozeline serve --help`)",
        param=loading.VERSION,
        headers={"retry-after": "1"} if is_coming else None,
    )


def no_such_model(
    name: str | None, able: list[str], ability: Ability[Model], *, route: str = "", listed: str = LIST
) -> ApiError:
    """Return a 404 that lists the models `able` to answer."""
    missing, expected = ability.missing.format(route=route), ability.expected.format(route=route)
    return problem(
        404,
        "no_such_model",
        f"no {'served model' if name is None else 'model of that name'} {missing}",
        given="no model name" if name is None else name,
        expected=f"one of: {', '.join(able)}" if able else expected,
        do=f"choose a name from {listed}" if able else ability.do,
        param="model",
    )


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    body: bytes
    headers: dict[str, str]
    size_bytes: int  # approximate memory of the answer and its key


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """Best answer to each text, mask or question of one request."""

    model: str
    version: str
    hashes: "array[int]"
    are_entities: bool  # whether each answer is a set of entities, rather than a label, a word or a span

    def num_right(self, right: Sequence[Hashable]) -> int:
        """Return how many answers equal the one in the same place of `right`, which is as long."""
        return sum(answered == hash(one) for answered, one in zip(self.hashes, right, strict=True))


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limits of the work that runs at once, and of the work that may wait."""

    num_workers: int
    admission: Admission = field(default_factory=Admission)
    batch_tokens: int = queue.BATCH_TOKENS
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS  # timeout of a request that sets none itself
    cache_bytes: int = 0  # size of the cache of answers; 0: no cache


class Service:
    """The phase is loading until `open`, and stopping after `drain`. Accepted requests are answered even then."""

    def __init__(self, capacity: Capacity, tracing: Tracing | None = None) -> None:
        self.scheduler = scheduler.Scheduler(
            capacity.num_workers, asking.deliver, admission=capacity.admission, batch_tokens=capacity.batch_tokens
        )
        self.metrics = metrics.Metrics(capacity.num_workers, lambda: self.scheduler.waiting_tokens)
        self.workers = scheduler.BatchWorkers(self.scheduler, capacity.num_workers, self.metrics.ran)
        self.tracing = tracing or Tracing()
        self.asking = asking.Asking(self.scheduler, self.metrics, self.tracing, capacity.timeout_seconds)
        self.batch_tokens = capacity.batch_tokens
        self.cache: LRUCache[Key, CachedAnswer] = LRUCache(capacity.cache_bytes, getsizeof=lambda kept: kept.size_bytes)
        # Answers to the last requests, by their ids. Only the event loop uses it.
        self.given: FIFOCache[str, GivenAnswer] = FIFOCache(_MOST_REQUESTS)
        self.schedule = queue.VersionSchedule(self._offer)
        self._catalogue: Catalogue | None = None
        self._stopping = False

    def open(self, catalogue: Catalogue) -> None:
        """Answer with these models from now on."""
        for served in catalogue:
            self.metrics.serves(served.identity)
        self._catalogue = catalogue

    def swap(self, served: loading.LoadedModel) -> None:
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

    def _offer(
        self, name: str, served: loading.LoadedModel, others: Sequence[loading.LoadedModel], coming: Collection[str]
    ) -> None:
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
