"""Errors in the words of each protocol: what its clients read, from the one record of errors.py.

Which dialect is spoken is told by the path alone, so that also a middleware that refuses a request speaks it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from clozeline.serving.errors import ApiError, ErrorDetail, ErrorEnvelope
from clozeline.serving.responses import JsonResponse


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True)


class OpenAIErrorDetail(ErrorDetail):
    type: str


class OpenAIError(_Body):
    error: OpenAIErrorDetail


class HuggingFaceError(_Body):
    """Of the pipelines, and of text-embeddings-inference."""

    error: str
    error_type: str


class InferenceProtocolError(_Body):
    error: str


class MlflowError(_Body):
    error_code: str
    message: str


@dataclass(frozen=True, slots=True)
class Dialect:
    envelope: type[BaseModel]
    say: Callable[[int, ErrorDetail], BaseModel]
    unusable: int = 422
    """Status of what can be read, but not used."""

    def status(self, status: int) -> int:
        return self.unusable if status == 422 else status


_OPENAI_CODES = {"no_such_model": "model_not_found", "no_key": "invalid_api_key", "overloaded": "rate_limit_exceeded"}
_OPENAI_TYPES = {429: "rate_limit_error"}
_HUGGING_FACE_TYPES = {429: "Overloaded", 503: "Unhealthy"}
_MLFLOW_CODES = {
    401: "UNAUTHENTICATED",
    404: "RESOURCE_DOES_NOT_EXIST",
    429: "REQUEST_LIMIT_EXCEEDED",
    500: "INTERNAL_ERROR",
    503: "TEMPORARILY_UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def _house(status: int, detail: ErrorDetail) -> ErrorEnvelope:
    return ErrorEnvelope(error=detail)


def _openai(status: int, detail: ErrorDetail) -> OpenAIError:
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    told = detail.model_dump() | {"code": _OPENAI_CODES.get(detail.code, detail.code), "type": kind}
    return OpenAIError(error=OpenAIErrorDetail(**told | {"message": _sentence(detail)}))


def _hugging_face(status: int, detail: ErrorDetail) -> HuggingFaceError:
    kind = _HUGGING_FACE_TYPES.get(status, "Backend" if status >= 500 else "Validation")
    return HuggingFaceError(error=_sentence(detail), error_type=kind)


def _inference_protocol(status: int, detail: ErrorDetail) -> InferenceProtocolError:
    return InferenceProtocolError(error=_sentence(detail))


def _mlflow(status: int, detail: ErrorDetail) -> MlflowError:
    return MlflowError(error_code=_MLFLOW_CODES.get(status, "BAD_REQUEST"), message=_sentence(detail))


def _sentence(detail: ErrorDetail) -> str:
    """All of it, for clients that show a person this and nothing else."""
    return f"{detail.message} (given: {detail.given}; expected: {detail.expected}; do: {detail.do})"


HOUSE = Dialect(ErrorEnvelope, _house)
OPENAI = Dialect(OpenAIError, _openai, unusable=400)
HUGGING_FACE = Dialect(HuggingFaceError, _hugging_face)
INFERENCE_PROTOCOL = Dialect(InferenceProtocolError, _inference_protocol, unusable=400)
MLFLOW = Dialect(MlflowError, _mlflow, unusable=400)

_SPOKEN = {
    "v1": OPENAI,
    "v2": INFERENCE_PROTOCOL,
    "invocations": MLFLOW,
    "version": MLFLOW,
    "pipeline": HUGGING_FACE,
    "embed": HUGGING_FACE,
    "predict": HUGGING_FACE,
    "rerank": HUGGING_FACE,
    "similarity": HUGGING_FACE,
    "tokenize": HUGGING_FACE,
    "decode": HUGGING_FACE,
    "info": HUGGING_FACE,
}
"""By the first part of a path; everywhere else the envelope of the house is."""


def spoken_at(path: str) -> Dialect:
    return _SPOKEN.get(path.removeprefix("/").partition("/")[0], HOUSE)


def refusal(error: ApiError, path: str) -> JsonResponse:
    """The answer that tells a client of `path` about `error`."""
    dialect = spoken_at(path)
    said = dialect.say(error.status, error.detail)
    return JsonResponse(said.model_dump(), dialect.status(error.status), error.headers)
