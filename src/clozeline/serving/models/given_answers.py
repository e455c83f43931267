"""Recent answers by request id, to be scored when feedback arrives. No text is kept."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

REQUEST_ID = "x-request-id"
"""Header with the id of a request whose answer /feedback can score."""
_MOST_REQUESTS = 10_000


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """Best label of each text of one request."""

    model: str
    version: str
    labels: tuple[str, ...]


class GivenAnswers:
    """The answers to the last 10,000 requests. Only the event loop uses it."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, GivenAnswer] = OrderedDict()

    def keep(self, model: str, version: str, labels: Sequence[str]) -> str:
        """Keep the answer to a request, and return the new id of the request."""
        request_id = uuid4().hex
        self._by_id[request_id] = GivenAnswer(model, version, tuple(labels))
        while len(self._by_id) > _MOST_REQUESTS:
            self._by_id.popitem(last=False)
        return request_id

    def find(self, request_id: str) -> GivenAnswer | None:
        """Return the answer to a request; None if it is too old, already scored or unknown."""
        return self._by_id.get(request_id)

    def forget(self, request_id: str) -> None:
        """Forget an answer that was scored: feedback counts once."""
        self._by_id.pop(request_id, None)
