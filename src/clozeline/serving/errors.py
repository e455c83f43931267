"""The record of every HTTP error; http/dialects.py renders it in the error format of each protocol.

code      identifier for programs
message   what happened, in one sentence
param     part of the body, such as `inputs[3]` or `parameters.top_k`; null for other errors
given, expected, do   as in every `ClozelineError`
"""

from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import Final, Self

import orjson
from pydantic import BaseModel, ConfigDict

from clozeline.inference.tokenization import is_panic

_SHOWN_CHARACTERS = 160
KEYS_VARIABLE: Final = "CLOZELINE_API_KEYS"
"""Environment variable with the accepted API keys, separated by commas."""
DEFAULT_TIMEOUT_SECONDS: Final = 30.0
"""Timeout of a request that sets none itself."""
HEALTH_PATHS: Final = frozenset(
    {"/health", "/health/live", "/health/ready", "/ping", "/v2/health/live", "/v2/health/ready"}
)
"""Paths that probes poll, also while the server stops."""


class ErrorDetail(BaseModel):
    model_config = ConfigDict(frozen=True)

    code: str
    message: str
    param: str | None
    given: str
    expected: str
    do: str


class ApiError(Exception):
    """Ends a request with an HTTP status and an error record."""

    def __init__(self, status: int, detail: ErrorDetail, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def problem(
    status: int,
    code: str,
    message: str,
    *,
    given: object,
    expected: str,
    do: str,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ApiError:
    """Return an `ApiError`; `given` is cut to a readable length."""
    detail = ErrorDetail(code=code, message=message, param=param, given=shortened(given), expected=expected, do=do)
    return ApiError(status, detail, headers)


_REFUSALS = {
    "malformed_json": ("the body is not JSON", "correct the body; /docs has an example for each route"),
    "no_such_label": ("the model has no such label", "choose from the `labels` of this model in /models"),
    "no_such_request": (
        "there is no answer to score under this request id",
        "send feedback once, and soon after the answer",
    ),
    "compressed_body": (
        "the body is compressed, and the server reads only uncompressed bodies",
        "send it uncompressed; split a large body into several requests",
    ),
    "not_json": (
        "the server does not read bodies of this content type",
        "add the header (curl: -H 'content-type: application/json')",
    ),
    "not_utf8": ("the server does not read this charset", "encode the body as UTF-8 and correct the header"),
    "labels_compete": (
        "an encoder cannot score labels independently",
        "leave `multi_label` out, or serve such a classifier too",
    ),
    "no_such_input": ("these are not the inputs of the model", "send each input that /v2/models/NAME lists, once"),
    "no_such_output": ("the model has no output of that name", "choose from the outputs in /v2/models/NAME"),
    "no_such_parameter": ("the model does not read this parameter", "leave it out"),
    "no_token_vectors": (
        "the package of this model gives no vectors of tokens",
        "export it again, or leave `?level=tokens` out",
    ),
    "other_answers": (
        "each answer of the request needs its right one",
        "send one for each text, question or mask, in the order of the request",
    ),
    "several_masks": (
        "a tensor has room for one mask in each text",
        "send the text to /fill-mask, which answers for each mask",
    ),
    "too_many_dimensions": (
        "the vectors of this model have fewer dimensions",
        "ask for fewer dimensions, or leave `dimensions` out",
    ),
    "two_models": ("the path names one model and the request another", "leave `model` out, or remove the prefix"),
    "unknown_prompt": ("the model has no prompt of this name", "correct `prompt_name`, or leave it out"),
    "unknown_token": (
        "a token id is not in the vocabulary of the model",
        "send ids that /tokenize returns for this model",
    ),
    "unreadable_tensor": ("the tensor cannot be read", "compare the request with the example at /docs"),
    "unusable_level": ("`level` cannot be used", "correct the query of the URL"),
    "worker_fault": ("a worker thread failed", "restart the server; see its log for the cause"),
}
"""Code of an error about a request → message, and what to do."""
_STATUSES = {
    "malformed_json": 400,
    "no_such_label": 404,
    "no_such_request": 404,
    "compressed_body": 415,
    "not_json": 415,
    "not_utf8": 415,
    "worker_fault": 503,
}
"""Statuses of those that are not 422."""


def refused(
    code: str, *, given: object, expected: str, param: str | None = None, headers: Mapping[str, str] | None = None
) -> ApiError:
    """Return the `problem` of a code of the table."""
    message, do = _REFUSALS[code]
    status = _STATUSES.get(code, 422)
    return problem(status, code, message, given=given, expected=expected, do=do, param=param, headers=headers)


def check_known(code: str, given: Iterable[str], known: Collection[str], param: str) -> None:
    """Raise ApiError, the refusal `code`, if one of `given` is not `known`; `{}` in `param` stands for its name."""
    wrong = next((name for name in given if name not in known), None)
    if wrong is not None:
        raise refused(code, given=wrong, expected=f"one of: {', '.join(known)}", param=param.format(wrong))


def shortened(value: object) -> str:
    text = value if isinstance(value, str) else written(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def written(value: object) -> str:
    """Return `value` as JSON; a remark if it is nested too deep."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return "a value that is nested too deeply to show"


def not_ready(phase: str, *, hang_up: bool = False) -> ApiError:
    headers = {"retry-after": "1"}
    return problem(
        503,
        "not_ready",
        f"the server is {phase}",
        given=f"phase {phase}",
        expected="phase ready",
        do="poll /health/ready until it answers 200",
        headers=headers | {"connection": "close"} if hang_up else headers,
    )


class PanicError(Exception):
    """A Rust library panicked. Its own exception, the cause, does not derive from `Exception`."""


class Caught:
    """`with Caught() as caught:` keeps an exception in `caught.error`; a panic of a Rust library becomes `PanicError`.

    Exceptions that end the thread or the process, such as KeyboardInterrupt, pass through.
    """

    error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self.error = error
        elif error is not None and is_panic(error):
            self.error = PanicError(str(error))
            self.error.__cause__ = error
        return self.error is not None
