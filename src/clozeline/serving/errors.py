"""One record for every error, whichever room raised it; protocols/dialects.py says it in the words of each protocol.

code      what a program tells errors apart by
message   what happened, in one sentence
param     which part of the body, as `inputs[3]` or `parameters.top_k`; null when it is none
given, expected, do   as in every `ClozelineError`
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import orjson
from pydantic import BaseModel, ConfigDict


class ErrorDetail(BaseModel):
    model_config = ConfigDict(frozen=True)

    code: str
    message: str
    param: str | None
    given: str
    expected: str
    do: str


class ApiError(Exception):
    """Ends a request with an HTTP status and the record."""

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
    """The `ApiError` that says so; `given` is cut to a readable length."""
    detail = ErrorDetail(code=code, message=message, param=param, given=shortened(given), expected=expected, do=do)
    return ApiError(status, detail, headers)


def shortened(value: object, limit: int = 160) -> str:
    text = value if isinstance(value, str) else written(value)
    return text if len(text) <= limit else text[:limit] + "…"


def written(value: object) -> str:
    """`value` as its client wrote it, in JSON; which may be nested deeper than it is written here."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return "a value that is nested too deep to be shown"


def not_ready(phase: str, *, hang_up: bool = False) -> ApiError:
    headers = {"retry-after": "1"}
    return problem(
        503,
        "not_ready",
        f"the server is {phase}",
        given=f"phase {phase}",
        expected="phase ready",
        do="ask /health/ready until it answers 200",
        headers=headers | {"connection": "close"} if hang_up else headers,
    )


class Caught:
    """`with Caught() as caught:` swallows an exception into `caught.error`.

    What is to end the thread or the process goes on.
    """

    error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None
