"""Every way a request can fail, turned into the one envelope of errors.py."""

import difflib
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from clozeline.errors import ClozelineError, DataError
from clozeline.inference.errors import (
    MaskCutOffError,
    NoMaskError,
    NotAPairError,
    TargetError,
    TextError,
    TextTooLongError,
)
from clozeline.serving.errors import ApiError, problem, shortened, written
from clozeline.serving.head_requests import answered_methods
from clozeline.serving.observe.told import told_route
from clozeline.serving.protocols.dialects import refusal
from clozeline.serving.protocols.model_prefix import asked_path
from clozeline.serving.refusals import internal_error
from clozeline.serving.schemas import TAGS
from clozeline.serving.text_places import place_of

_EXPECTED = {
    "string_pattern_mismatch": "text with at least one visible character and no NUL",
    "string_too_short": "text with at least one visible character and no NUL",
    "too_short": "a list of at least 1 item",
    "missing": "a value for this key",
    "model_attributes_type": "a JSON object",
    "model_type": "a JSON object",
    "dict_type": "a JSON object",
    "bool_type": "true or false",
    "none_required": "null",
}
"""Instead of pydantic's words, where they speak of its own workings."""

_CODES: dict[type[ClozelineError], str] = {
    TextTooLongError: "text_too_long",
    NoMaskError: "no_mask",
    MaskCutOffError: "mask_cut_off",
    NotAPairError: "not_a_pair",
    TextError: "unusable_text",
    TargetError: "unknown_target",
    DataError: "unusable_data",
}
"""Of the faults that inference finds; the first that fits."""


def add_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClozelineError, _clozeline)
    app.add_exception_handler(Exception, _unexpected)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return refusal(error, request.url.path)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults: Sequence[dict[str, Any]] = error.errors()
    fault = min(faults, key=lambda fault: fault["type"] != "unknown_key")
    param = _param(fault["loc"])
    more = f" (1 of {len(faults)} faults)" if len(faults) > 1 else ""
    if fault["type"] == "unknown_key":
        context = fault["ctx"]
        param = shortened(f"{param}.{context['key']}" if param else context["key"])
        told = problem(
            422,
            "unknown_key",
            f"`{param}` is not a key of this request{more}",
            param=param,
            given=context["key"],
            expected=fault["msg"],
            do=f"rename it to `{context['near']}`" if context["near"] else "remove it, or correct its name",
        )
        return refusal(told, request.url.path)
    told = problem(
        422,
        "invalid_request",
        f"`{param or 'the body'}` cannot be used{more}",
        param=param,
        given="nothing" if fault["type"] == "missing" else written(fault["input"]),
        expected=_expected(fault),
        do="mend it; /docs has an example for each route",
    )
    return refusal(told, request.url.path)


def _param(location: tuple[int | str, ...]) -> str | None:
    """`("body", "inputs", "(texts)", 3)` is `inputs[3]`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("body", "header", *TAGS):
            path += f".{part}" if path else part
    return path or None


def _expected(fault: dict[str, Any]) -> str:
    context = fault.get("ctx", {})
    if fault["type"] == "too_long":
        return f"a list of at most {context['max_length']} items"
    if fault["type"] == "string_too_long":
        return f"a text of at most {context['max_length']:,} characters"
    if fault["type"] == "literal_error":
        return "true" if context["expected"] == "True" else str(context["expected"]).replace("'", '"')
    message: str = fault["msg"]
    return _EXPECTED.get(fault["type"], message.removeprefix("Input should be "))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    made = {404: _no_route, 405: _wrong_method}.get(error.status_code, _other_status)
    return refusal(made(request, error), request.url.path)


def _no_route(request: Request, error: HTTPException) -> ApiError:
    paths: list[str] = request.app.state.paths
    near = difflib.get_close_matches(request.url.path, paths, n=1)
    return problem(
        404,
        "no_such_route",
        "there is nothing at this path",
        given=f"{request.method} {asked_path(request.scope)}",
        expected=f"one of: {', '.join(paths)}",
        do=f"use {near[0]}" if near else "see /docs",
    )


def _wrong_method(request: Request, error: HTTPException) -> ApiError:
    methods = answered_methods((error.headers or {}).get("Allow", "GET"))
    allowed = ", ".join(methods)
    return problem(
        405,
        "wrong_method",
        "this path does not answer this method",
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
        expected="a request as /docs shows it",
        do="compare it with the example of this route at /docs",
        headers=error.headers,
    )


async def _clozeline(request: Request, error: Exception) -> Response:
    """What inference says of a text is the client's business; anything else is ours."""
    assert isinstance(error, ClozelineError)
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
    if code is None:
        raise error
    param, message = "parameters", error.problem
    if isinstance(error, TextError):
        param = place_of(error.number, told_route(request.scope))
        message = f"`{param}` {error.problem.removeprefix(f'text {error.number} ')}"
    told = problem(422, code, message, param=param, given=error.given, expected=error.expected, do=error.do)
    return refusal(told, request.url.path)


async def _unexpected(request: Request, error: Exception) -> Response:
    """Of what is around the application (faults.py has the rest): Starlette raises it again, and uvicorn hangs up."""
    return refusal(internal_error(request.method, request.url.path, hang_up=True), request.url.path)
