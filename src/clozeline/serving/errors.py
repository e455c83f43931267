"""The record of every HTTP error; http/dialects.py renders it in the error format of each protocol.

code      identifier for programs
message   what happened, in one sentence
param     part of the body, such as `inputs[3]` or `parameters.top_k`; null for other errors
given, expected, do   as in every `ClozelineError`
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Self

import orjson
from pydantic import BaseModel, ConfigDict
from ruamel.yaml import YAML

from clozeline.inference.tokenization import is_panic

_SHOWN_CHARACTERS = 160
# Environment variable with the accepted API keys, separated by commas.
KEYS_VARIABLE = "CLOZELINE_API_KEYS"
# Timeout of a request that sets none itself.
DEFAULT_TIMEOUT_SECONDS = 30.0
# Paths that probes poll, also while the server stops.
HEALTH_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/ping", "/v2/health/live", "/v2/health/ready"})


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


NO_HEADERS: Mapping[str, str] = {}
CLOSE = MappingProxyType({"connection": "close"})
RETRY = MappingProxyType({"retry-after": "1"})


class _Refusal(NamedTuple):
    message: str
    do: str
    status: int = 422
    headers: Mapping[str, str] = NO_HEADERS


@cache
def _refusals() -> dict[str, _Refusal]:
    """Return the refusals that always have the same message by their codes."""
    rows = YAML(typ="safe").load(Path(__file__).with_name("refusals.yaml"))
    return {code: _Refusal(**row) for code, row in rows.items()}


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
    row = _refusals()[code]
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
