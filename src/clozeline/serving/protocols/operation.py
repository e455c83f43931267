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
from clozeline.serving.errors import problem
from clozeline.serving.models.catalogue import Catalogue
from clozeline.serving.models.service import Service
from clozeline.serving.protocols.model_prefix import PREFIX, prefixed_name
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
        prefixed = prefixed_name(self.request.scope)
        if prefixed is None or name is None or name == prefixed:
            return prefixed or name
        raise problem(
            422,
            "two_models",
            "the path names one model and the request another",
            given=f"{PREFIX}{prefixed} and {name}",
            expected="one name",
            do="leave `model` out, or ask without the prefix",
            param="model",
        )

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
    tells: Literal["nothing", "model", "time"] | None = None
    """What its headers say: which model gave it, and where the time went; None: both of what is asked with a body."""
    refusals: Refusals | None = None
    """What may come instead; None: what always may, where a model answers, and where the server tells of itself."""
    body: type[BaseModel] | None = None
    examples: Mapping[str, Example] = field(default_factory=dict)
    read: Callable[[Headers, bytes], int] = read_json
    """How many bytes of what was sent are its JSON; raises ApiError: it cannot be read."""
    place: Callable[[int], str] = listed
    """The field of the text of this number: inference numbers them from 0, and a client knows its own fields."""
    name: str = ""
    """Of the operation in the document; none: that of `answer`."""

    @property
    def method(self) -> Literal["GET", "POST"]:
        return "POST" if self.body else "GET"

    @property
    def says(self) -> Literal["nothing", "model", "time"]:
        return self.tells or ("time" if self.body else "nothing")

    @property
    def is_timed(self) -> bool:
        """Whether a graph runs for it, and its client may say how long it waits."""
        return self.says == "time"

    @property
    def may_say(self) -> Refusals:
        """Instead of its answer, by status."""
        return self.refusals or (KEYED | LOADING if self.says == "nothing" else ASKED)

    @property
    def operation_name(self) -> str:
        return self.name or self.answer.__name__
