"""Hashes of recent answers by request id, to be scored when feedback arrives. No text is kept."""

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from uuid import uuid4

REQUEST_ID = "x-request-id"
"""Header with the id of a request whose answer /feedback can score."""
_MOST_REQUESTS = 10_000


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """Best answer to each text, mask or question of one request."""

    model: str
    version: str
    hashes: "array[int]"
    are_entities: bool
    """Whether each answer is a set of entities, rather than a label, a word or a span."""

    def num_right(self, right: Sequence[Hashable]) -> int:
        """Return how many answers equal the one in the same place of `right`, which is as long."""
        return sum(answered == hash(one) for answered, one in zip(self.hashes, right, strict=True))


class GivenAnswers:
    """The answers to the last 10,000 requests. Only the event loop uses it."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, GivenAnswer] = OrderedDict()

    def keep(self, model: str, version: str, best: Iterable[Hashable], *, are_entities: bool = False) -> dict[str, str]:
        """Keep the best answers of a request; return the header with its new id."""
        request_id = uuid4().hex
        self._by_id[request_id] = GivenAnswer(model, version, array("q", map(hash, best)), are_entities)
        while len(self._by_id) > _MOST_REQUESTS:
            self._by_id.popitem(last=False)
        return {REQUEST_ID: request_id}

    def find(self, request_id: str) -> GivenAnswer | None:
        """Return the answer to a request; None if it is too old, already scored or unknown."""
        return self._by_id.get(request_id)

    def forget(self, request_id: str) -> None:
        """Forget an answer that was scored: feedback counts once."""
        self._by_id.pop(request_id, None)
