"""One path of a protocol: its request, its answer, and its entry in /openapi.json; and a protocol as a row.

The row has the paths of the protocol, and its format for the error record of serving/errors.py. The path alone
determines the format, so that middleware that refuses a request uses it too.
"""

from array import array
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeVar
from uuid import uuid4

import orjson
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from clozeline.inference.open_model import Dialogue, OpenModel
from clozeline.serving import errors, loading
from clozeline.serving.asking import Reply
from clozeline.serving.errors import refused
from clozeline.serving.http.bodies import PREFIX, prefixed_name, read_json
from clozeline.serving.loading import VERSION, LoadedModel, ServedModel
from clozeline.serving.models import LIST, REQUEST_ID, Ability, Catalogue, GivenAnswer, Service

Answer = TypeVar("Answer")
Model = TypeVar("Model", bound=OpenModel)
# Meaning of each error status that a path may answer.
Refusals = dict[int, str]
_EVERYWHERE: Refusals = {
    400: "The Host header is missing, repeated or invalid",
    421: "The server does not answer under this host name; see `clozeline serve --allowed-host`",
    429: "Too many requests are open; Retry-After says when to retry",
}
LOADING: Refusals = {503: "The server is loading or stopping; Retry-After says when to retry"}
KEYED: Refusals = {401: "The API key is missing or unknown, and the server requires one"}
# Errors of every path that a model answers.
ASKED: Refusals = {
    400: "The body is not JSON; or: the Host header is missing, repeated or invalid",
    **KEYED,
    404: "No such model or label",
    408: "The body did not arrive in time",
    409: "The model is not served in the version that x-model-version names",
    413: "The body is too large, or its work cannot finish before the deadline",
    415: "The content type is not JSON in UTF-8, or the body is compressed",
    422: "A field or a text cannot be used",
    429: "Too much work is waiting; Retry-After says when to retry",
    **LOADING,
    504: "The deadline of the request passed",
}


class JsonResponse(Response):
    """Serializes numpy arrays and dataclasses straight to bytes, without lists in between."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status_code, headers)

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, and its access to the models."""

    request: Request
    service: Service
    path: str  # path of the operation, with its parameters in braces
    timeout_milliseconds: int | None = None  # None: the timeout of the server
    behind_json: bytes = b""  # bytes after the JSON, for protocols with raw tensors

    @property
    def models(self) -> Catalogue:
        """The loaded models. Raises ApiError: 503, they are not loaded yet."""
        return self.service.catalogue

    def wanted(self, name: str | None = None) -> str | None:
        """Return the requested model: the name before the path, or `name` of the body; None: any that can answer.

        Raises:
            ApiError: 422, the two names differ.
        """
        prefixed = prefixed_name(self.request.scope)
        if prefixed is None or name is None or name == prefixed:
            return prefixed or name
        raise refused("two_models", given=f"{PREFIX}{prefixed} and {name}", expected="one name", param="model")

    def served(self, ability: Ability[Model], name: str | None = None, *, listed: str = LIST) -> ServedModel[Model]:
        """Return the model of this ability that is requested: by the path, by `name`, or the default one.

        Raises:
            ApiError: 404, no such model, and where names are `listed`; 422, path and `name` differ; 409 or 503, it is
                not served in the version that the header names.
        """
        found = self.models.answering(ability, self.wanted(name), route=self.path, listed=listed)
        version = self.request.headers.get(VERSION)
        if version in (None, found.identity.version):
            return found
        return self.models.pinned(found.identity.name, version, ability)

    def routes(self, served: LoadedModel) -> list[str]:
        """Return the paths that `served` answers, in the order of the protocols."""
        return [one.path for one in self.request.app.state.dialects.asking(served)]

    async def converse(self, served: LoadedModel, texts: Sequence[str], dialogue: Dialogue[Answer]) -> Reply[Answer]:
        """Return the result of the dialogue about `texts`. Raises what `Asking.converse` raises."""
        return await self.service.asking.converse(self.request, served, texts, dialogue, self.timeout_milliseconds)

    def confident(
        self, served: LoadedModel, answers: Sequence[Any], confidence: Callable[[Any], Iterable[float]] | None = None
    ) -> None:
        """Observe the probabilities in the answers. `confidence`: None is that of the model."""
        scores = chain.from_iterable(map(confidence or served.model.confidence, answers))
        self.service.metrics.confident(served.identity.name, scores)

    def scorable(
        self, served: LoadedModel, headers: dict[str, str], best: Sequence[Hashable], *, are_entities: bool = False
    ) -> dict[str, str]:
        """Keep the best answers, which feedback may score; return `headers` with the id to score them under."""
        identity, request_id = served.identity, uuid4().hex
        answers = array("q", map(hash, best))
        self.service.given[request_id] = GivenAnswer(identity.name, identity.version, answers, are_entities)
        return headers | {REQUEST_ID: request_id}


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """GET of one path, or POST if `answer` takes a `body`."""

    path: str
    # Takes the `Call`, and the body if there is one. Its docstring describes the path in the document.
    answer: Callable[..., Awaitable[Response]]
    result: Any  # type of the JSON answer, or the media type of an answer that is not JSON
    summary: str = ""  # replaces the first line of the docstring of `answer`
    result_description: str = ""  # replaces what the docstring of `answer` says that it returns
    # Content of the headers: nothing, the model, or the model and the times. None: both if there is a body.
    tells: Literal["nothing", "model", "time"] | None = None
    # Errors in addition to those of every path. None: `ASKED` if a model answers, else `KEYED` and `LOADING`.
    refusals: Refusals | None = None
    ability: Ability[Any] | None = None  # ability that the answering model needs; None: no model is involved
    # Returns how many bytes of the body are its JSON. Raises ApiError: the body cannot be read.
    read: Callable[[Headers, bytes], int] = read_json
    # Returns the field that holds the text of this number: inference numbers texts from 0, clients know fields.
    place: Callable[[int], str] = "inputs[{}]".format
    name: str = ""  # name of the operation in the document; empty: the name of `answer`

    @property
    def body(self) -> type[BaseModel] | None:
        """Class of the body; None: GET has none."""
        return self.answer.__annotations__.get("body")

    @property
    def method(self) -> Literal["GET", "POST"]:
        return "POST" if self.body else "GET"

    @property
    def says(self) -> Literal["nothing", "model", "time"]:
        return self.tells or ("time" if self.body else "nothing")

    @property
    def is_timed(self) -> bool:
        """Whether a graph runs, so that the client may set a timeout."""
        return self.says == "time"

    @property
    def error_meanings(self) -> Refusals:
        """Meaning of each error status that the path may answer."""
        asked = self.refusals or (KEYED | LOADING if self.says == "nothing" else ASKED)
        return _EVERYWHERE | asked


class ErrorBody(BaseModel):
    model_config = ConfigDict(frozen=True)


class ErrorEnvelope(ErrorBody):
    error: errors.ErrorDetail


@dataclass(frozen=True, slots=True)
class Words:
    """How a protocol words an error."""

    envelope: type[BaseModel]
    say: Callable[[int, errors.ErrorDetail], BaseModel]
    unusable: int = 422  # status of a body that can be read, but not used

    def status(self, status: int) -> int:
        return self.unusable if status == 422 else status

    def refusal(self, error: errors.ApiError) -> JsonResponse:
        """Return the response for `error`."""
        body = self.say(error.status, error.detail)
        return JsonResponse(body.model_dump(), self.status(error.status), error.headers)


def sentence(detail: errors.ErrorDetail) -> str:
    """Return the whole error as one text, for clients that show nothing else."""
    return f"{detail.message} (given: {detail.given}; expected: {detail.expected}; do: {detail.do})"


HOUSE_WORDS = Words(ErrorEnvelope, lambda status, detail: ErrorEnvelope(error=detail))


@dataclass(frozen=True, slots=True)
class Dialect:
    """One protocol: its error format and its paths."""

    words: Words
    operations: tuple[Operation, ...]
    tag: str | None = None  # heading of its paths in the document


class Dialects:
    """All protocols of a server. A path belongs to the protocol whose paths share the longest prefix with it."""

    def __init__(self, rows: Iterable[Dialect]) -> None:
        self.rows = tuple(rows)
        self._words: dict[str, Words] = {}
        for dialect in self.rows:
            for operation in dialect.operations:
                for beginning in _beginnings(operation.path.partition("/{")[0]):
                    self._words.setdefault(beginning, dialect.words)

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(operation for dialect in self.rows for operation in dialect.operations)

    def asking(self, served: loading.LoadedModel) -> list[Operation]:
        """Return the operations that `served` answers."""
        return [one for one in self.operations if one.ability and one.ability.of(served)]

    def words_at(self, path: str) -> Words:
        """Return the error format of the protocol at `path`; Clozeline's own elsewhere.

        If two protocols share a prefix, such as /v2, the first in the table formats the errors of unknown paths.
        """
        return next((self._words[part] for part in _beginnings(path) if part in self._words), HOUSE_WORDS)


def refusal(error: errors.ApiError, scope: Scope) -> JsonResponse:
    """Return the response for `error`, in the error format of the requested path."""
    dialects: Dialects = scope["app"].state.dialects
    return dialects.words_at(scope["path"]).refusal(error)


def _beginnings(path: str) -> Iterator[str]:
    """Yield `path` and its prefixes, longest first: /v2/models, /v2."""
    while path:
        yield path
        path = path.rpartition("/")[0]
