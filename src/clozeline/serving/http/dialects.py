"""A protocol as a row: its paths, and its format for the error record of serving/errors.py.

The path alone determines the format, so that middleware that refuses a request uses it too.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict
from starlette.types import Scope

from clozeline.serving import errors, loading
from clozeline.serving.http.operation import JsonResponse, Operation


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
