"""Exception handlers: every failure becomes an error response in the format of the requested protocol."""

import difflib
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozeline.errors import ClozelineError, DataError
from clozeline.inference.errors import (
    MaskCutOffError,
    NoMaskError,
    NotAPairError,
    TargetError,
    TextError,
    TextTooLongError,
)
from clozeline.serving.errors import ApiError, Caught, problem
from clozeline.serving.protocols.dialects import Dialects, refusal
from clozeline.serving.protocols.endpoint import Endpoint
from clozeline.serving.protocols.model_prefix import asked_path

_LOG = logging.getLogger(__name__)
_CODES: dict[type[ClozelineError], str] = {
    TextTooLongError: "text_too_long",
    NoMaskError: "no_mask",
    MaskCutOffError: "mask_cut_off",
    NotAPairError: "not_a_pair",
    TextError: "unusable_text",
    TargetError: "unknown_target",
    DataError: "unusable_data",
}
"""Codes of the errors that inference raises. The first class that matches wins."""


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return refusal(error, request.scope)


async def _from_router(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    made = {404: _no_route, 405: _wrong_method}.get(error.status_code, _other_status)
    return refusal(made(request, error), request.scope)


def _no_route(request: Request, error: HTTPException) -> ApiError:
    dialects: Dialects = request.app.state.dialects
    paths = sorted(operation.path for operation in dialects.operations)
    near = difflib.get_close_matches(request.url.path, paths, n=1)
    return problem(
        404,
        "no_such_route",
        "no route has this path",
        given=f"{request.method} {asked_path(request.scope)}",
        expected=f"one of: {', '.join(paths)}",
        do=f"use {near[0]}" if near else "see /docs",
    )


def _wrong_method(request: Request, error: HTTPException) -> ApiError:
    methods = sorted((error.headers or {}).get("Allow", "GET").split(", "))
    allowed = ", ".join(methods)
    return problem(
        405,
        "wrong_method",
        "this path does not support this method",
        given=f"{request.method} {asked_path(request.scope)}",
        expected=allowed,
        do=f"send {' or '.join(methods)} instead",
        headers={"allow": allowed},
    )


def _other_status(request: Request, error: HTTPException) -> ApiError:
    phrase = HTTPStatus(error.status_code).phrase
    return problem(
        error.status_code,
        phrase.lower().replace(" ", "_"),
        str(error.detail),
        given=f"{request.method} {asked_path(request.scope)}",
        expected="a request as shown at /docs",
        do="compare it with the example of this route at /docs",
        headers=error.headers,
    )


async def _from_model(request: Request, error: Exception) -> Response:
    """Answer 422 if inference refuses a text; raise any other error again, as a fault of the server."""
    assert isinstance(error, ClozelineError)
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
    if code is None:
        raise error
    param, message = "parameters", error.problem
    if isinstance(error, TextError):
        endpoint: Endpoint = request.scope["endpoint"]
        param = endpoint.operation.place(error.number)
        message = f"`{param}` {error.problem.removeprefix(f'text {error.number} ')}"
    detail = problem(422, code, message, param=param, given=error.given, expected=error.expected, do=error.do)
    return refusal(detail, request.scope)


async def _unexpected(request: Request, error: Exception) -> Response:
    """Answer a fault of the middleware around `Faults`. Starlette raises it again, and uvicorn hangs up."""
    return refusal(_internal_error(request.method, request.url.path, hang_up=True), request.scope)


HANDLERS: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = MappingProxyType(
    {
        ApiError: _refused,
        HTTPException: _from_router,
        ClozelineError: _from_model,
        Exception: _unexpected,
    }
)


class Faults:
    """Innermost middleware: logs the traceback of an unexpected exception and answers 500.

    The middleware around it counts and logs a 500, and adds headers to it, as for any other answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        with Caught() as caught:
            await self._app(scope, receive, noting)
        if caught.error is None:
            return
        if has_begun:
            raise caught.error  # the answer has begun: only hanging up tells the client
        _LOG.error("a request failed", exc_info=caught.error)
        await refusal(_internal_error(scope["method"], scope["path"]), scope)(scope, receive, send)


def _internal_error(method: str, path: str, *, hang_up: bool = False) -> ApiError:
    return problem(
        500,
        "internal_error",
        "the request failed because of a fault in the server",
        given=f"{method} {path}",
        expected="an answer",
        do="look for the traceback in the server's log",
        headers={"connection": "close"} if hang_up else None,
    )
