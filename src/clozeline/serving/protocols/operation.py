"""One path of a protocol: what it takes, what it answers, and what /openapi.json says of it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from clozeline.inference.open_model import OpenModel
from clozeline.inference.question import AnyQuestion, Question
from clozeline.serving.models.catalogue import Catalogue
from clozeline.serving.models.service import Service
from clozeline.serving.protocols.model_prefix import wanted_model
from clozeline.serving.protocols.reading import read_json
from clozeline.serving.scheduling.asking import Reply
from clozeline.serving.scheduling.work import LoadedModel

Answer = TypeVar("Answer")
Made = TypeVar("Made")


class JsonResponse(Response):
    """Numpy arrays and dataclasses straight to bytes, without lists in between."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status_code, headers)

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, and the way from it to the models."""

    request: Request
    service: Service
    timeout_milliseconds: int | None = None
    """None: as long as the server lets any request take."""
    behind_json: bytes = b""
    """What came after the JSON, of a protocol that has such."""

    @property
    def models(self) -> Catalogue:
        """Raises ApiError: 503, they are not loaded yet."""
        return self.service.catalogue

    def wanted(self, name: str | None = None) -> str | None:
        """Which model is to answer: the one before the path, or `name`, of the body; None: whichever can.

        Raises:
            ApiError: 422, the two are not the same.
        """
        return wanted_model(self.request.scope, name)

    async def ask(
        self, served: LoadedModel, texts: Sequence[str], question: Callable[[], Question[Answer]]
    ) -> Reply[Answer]:
        """What `served` answers to the question about `texts`; raises as `Asking.ask_together`."""
        return await self.service.asking.ask(self.request, served, texts, question, self.timeout_milliseconds)

    async def ask_together(
        self, served: LoadedModel, texts: Sequence[str], questions: Callable[[], Sequence[AnyQuestion]]
    ) -> list[Reply[Any]]:
        """As `ask`, of several questions: all of them are admitted, or none."""
        return await self.service.asking.ask_together(self.request, served, texts, questions, self.timeout_milliseconds)

    async def finished(self, reply: Reply[Any], work: Callable[[], Made], texts: Sequence[str]) -> Made:
        """What `work` makes of the answers to `texts`; raises as `Asking.finished`."""
        return await self.service.asking.finished(reply, work, sum(map(len, texts)))


@dataclass(frozen=True, slots=True)
class Example:
    """A body that is answered as it stands: /docs and the playground show it, and a test sends it."""

    summary: str
    value: dict[str, Any]
    asks: Callable[[OpenModel], bool] | None = None
    """Of which models it asks something; None: of any that answers its path and reads texts alone."""


Refusals = dict[int, str]
"""What a path may say instead of its answer, by status."""
LOADING: Refusals = {503: "Loading, or stopping; Retry-After says when"}
KEYED: Refusals = {401: "No API key that is known, where keys are asked for"}
ASKED: Refusals = {
    400: "The body is not JSON",
    **KEYED,
    404: "No such model, or no such label",
    408: "The body did not come to its end",
    413: "The body is too large, or more work than is done before the deadline",
    415: "The content type is not JSON in UTF-8, or the body is compressed",
    422: "A field, or a text, that cannot be used",
    429: "Too much work waits; Retry-After says when to come back",
    **LOADING,
    504: "The deadline of the request passed",
}
"""Of whatever a model answers."""


def listed(number: int) -> str:
    return f"inputs[{number}]"


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """GET, or with a `body` POST, of one path."""

    path: str
    answer: Callable[..., Awaitable[Response]]
    """Takes the `Call`, and the body if there is one."""
    summary: str
    result: Any
    """Type of what is answered, in JSON; a text: the media type of an answer that is none."""
    told: str = "Successful Response"
    """What the answer is."""
    tells: Literal["nothing", "model", "time"] = "nothing"
    """What the headers of the answer say: which model gave it, and of what a graph ran for, where the time went."""
    refusals: Refusals = field(default_factory=lambda: KEYED | LOADING)
    body: type[BaseModel] | None = None
    examples: Mapping[str, Example] = field(default_factory=dict)
    read: Callable[[Headers, bytes], int] = read_json
    """How many bytes of what was sent are its JSON; raises ApiError: it cannot be read."""
    place: Callable[[int], str] = listed
    """The field of the text of this number: inference numbers them from 0, and a client knows its own fields."""
    words: Any = None
    """A `Words` other than those of its protocol."""
    name: str = ""
    """Of the operation in the document; none: that of `answer`."""

    @property
    def is_timed(self) -> bool:
        """Whether its client may say how long it waits."""
        return self.tells == "time"

    @property
    def operation_name(self) -> str:
        return self.name or self.answer.__name__
