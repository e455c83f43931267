"""The record of every HTTP error; http/dialects.py renders it in the error format of each protocol.

code      identifier for programs
message   what happened, in one sentence
param     part of the body, such as `inputs[3]` or `parameters.top_k`; null for other errors
given, expected, do   as in every `ClozelineError`
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple, Self

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


NO_HEADERS: Mapping[str, str] = MappingProxyType({})
CLOSE = MappingProxyType({"connection": "close"})
RETRY = MappingProxyType({"retry-after": "1"})


class _Refusal(NamedTuple):
    message: str
    do: str
    status: int = 422
    headers: Mapping[str, str] = NO_HEADERS


_REFUSALS: Mapping[str, _Refusal] = {
    "answer_too_large": _Refusal(
        "the answer could be too large",
        "ask for fewer answers, or send shorter texts, fewer masks, or several requests",
    ),
    "bad_host": _Refusal(
        "the request needs exactly one valid Host header",
        "correct the client, or the proxy in front of the server",
        400,
        CLOSE,
    ),
    "body_too_large": _Refusal(
        "the body of the request is too large", "send the texts in several requests", 413, CLOSE
    ),
    "body_too_slow": _Refusal(
        "the body of the request did not arrive in time", "send less at once, or use a faster connection", 408, CLOSE
    ),
    "client_left": _Refusal(
        "the client closed the connection before the answer", "nothing: the server dropped the request", 499
    ),
    "compressed_body": _Refusal(
        "the body is compressed, and the server reads only uncompressed bodies",
        "send it uncompressed; split a large body into several requests",
        415,
    ),
    "deadline_passed": _Refusal(
        "the deadline of the request passed before its answer", "send fewer texts, or set a larger x-timeout-ms", 504
    ),
    "head_too_large": _Refusal(
        "the request line and headers are too large",
        "send fewer or shorter headers, and the texts in the body",
        431,
        CLOSE,
    ),
    "internal_error": _Refusal(
        "the request failed because of a fault in the server", "look for the traceback in the server's log", 500
    ),
    "labels_compete": _Refusal(
        "an encoder cannot score labels independently", "leave `multi_label` out, or serve such a classifier too"
    ),
    "malformed_json": _Refusal("the body is not JSON", "correct the body; /docs has an example for each route", 400),
    "no_key": _Refusal(
        "this server requires an API key",
        "ask the operator of this server for a key",
        401,
        MappingProxyType({"www-authenticate": "Bearer"}),
    ),
    "no_such_input": _Refusal(
        "these are not the inputs of the model", "send each input that /v2/models/NAME lists, once"
    ),
    "no_such_label": _Refusal("the model has no such label", "choose from the `labels` of this model in /models", 404),
    "no_such_output": _Refusal("the model has no output of that name", "choose from the outputs in /v2/models/NAME"),
    "no_such_parameter": _Refusal("the model does not read this parameter", "leave it out"),
    "no_such_request": _Refusal(
        "there is no answer to score under this request id", "send feedback once, and soon after the answer", 404
    ),
    "no_such_route": _Refusal("no route has this path", "see /docs", 404),
    "no_text_column": _Refusal("it is unclear which column holds the texts", "name the column with the texts `text`"),
    "no_token_vectors": _Refusal(
        "the package of this model gives no vectors of tokens", "export it again, or leave `?level=tokens` out"
    ),
    "not_http": _Refusal(
        "the client did not send an HTTP request",
        "correct the client; for TLS, use a proxy in front of the server",
        400,
        CLOSE,
    ),
    "not_json": _Refusal(
        "the server does not read bodies of this content type",
        "add the header (curl: -H 'content-type: application/json')",
        415,
    ),
    "not_utf8": _Refusal(
        "the server does not read this charset", "encode the body as UTF-8 and correct the header", 415
    ),
    "other_answers": _Refusal(
        "each answer of the request needs its right one",
        "send one for each text, question or mask, in the order of the request",
    ),
    "several_masks": _Refusal(
        "a tensor has room for one mask in each text", "send the text to /fill-mask, which answers for each mask"
    ),
    "too_many_dimensions": _Refusal(
        "the vectors of this model have fewer dimensions", "ask for fewer dimensions, or leave `dimensions` out"
    ),
    "too_much_work": _Refusal(
        "the server cannot finish this request before its deadline",
        "send the texts in several requests, or set a larger x-timeout-ms",
        413,
    ),
    "two_models": _Refusal(
        "the path names one model and the request another", "leave `model` out, or remove the prefix"
    ),
    "unknown_host": _Refusal(
        "this server does not answer under this host name",
        "use one of these names, or start the server with `--allowed-host NAME`",
        421,
    ),
    "unknown_prompt": _Refusal("the model has no prompt of this name", "correct `prompt_name`, or leave it out"),
    "unknown_token": _Refusal(
        "a token id is not in the vocabulary of the model", "send ids that /tokenize returns for this model"
    ),
    "unpaired_inputs": _Refusal("the two inputs have different numbers of texts", "send as many texts in both"),
    "unreadable_tensor": _Refusal("the tensor cannot be read", "compare the request with the example at /docs"),
    "unusable_level": _Refusal("`level` cannot be used", "correct the query of the URL"),
    "worker_fault": _Refusal("a worker thread failed", "restart the server; see its log for the cause", 503),
    "wrong_method": _Refusal("this path does not support this method", "send another method", 405),
}
"""Code → message, what to do, status and headers of an error that always has the same."""


def refused(
    code: str,
    *,
    given: object,
    expected: str,
    param: str | None = None,
    do: str | None = None,
    headers: Mapping[str, str] = NO_HEADERS,
) -> ApiError:
    """Return the `problem` of a code of the table, with more `headers`; `do` replaces what the table says."""
    row = _REFUSALS[code]
    return problem(
        row.status,
        code,
        row.message,
        given=given,
        expected=expected,
        do=do or row.do,
        param=param,
        headers={**row.headers, **headers} or None,
    )


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
    return problem(
        503,
        "not_ready",
        f"the server is {phase}",
        given=f"phase {phase}",
        expected="phase ready",
        do="poll /health/ready until it answers 200",
        headers={**RETRY, **(CLOSE if hang_up else NO_HEADERS)},
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
