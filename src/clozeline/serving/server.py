"""The server process: opens the port, loads the models, serves, and stops without losing accepted requests.

`create_app` is the ASGI application alone: pages, OpenAPI document and protocols around one `Service`, behind
middleware. The page at `/` is one self-contained file, with a security policy that lets nothing else run in it. Every
failure becomes an error response in the format of the requested protocol. Each request gives one log line and one
count, without anything a client wrote: no text, query or unknown path.
"""

import asyncio
import base64
import difflib
import errno
import hashlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozeline.inference import tokenization
from clozeline.records.package import Precision
from clozeline.registry.sources import ModelSource
from clozeline.serving import access, errors, limits, models, uvicorn_adapter, watching
from clozeline.serving.http import bodies, openapi
from clozeline.serving.http.endpoint import DIALECTS, Endpoint, routes_of_all
from clozeline.serving.http.operation import Dialects, JsonResponse, refusal
from clozeline.serving.tracing import shown_method, shown_route, shown_status, tracing
from clozeline.system.errors import ClozelineError, DataError, ParamsError

_LOG = logging.getLogger(__name__)
# Codes of the errors that inference raises. The first class that matches wins.
_CODES: dict[type[ClozelineError], str] = {
    tokenization.TextTooLongError: "text_too_long",
    tokenization.NoMaskError: "no_mask",
    tokenization.MaskCutOffError: "mask_cut_off",
    tokenization.NotAPairError: "not_a_pair",
    tokenization.TextError: "unusable_text",
    tokenization.TargetError: "unknown_target",
    DataError: "unusable_data",
}
# Number of the error → reason and remedy.
_CANNOT_LISTEN = {
    errno.EADDRINUSE: ("another process uses the port", "choose another port; `--port 0` takes a free one"),
    errno.EACCES: ("ports below 1024 need privileges", "choose a --port of 1024 or more"),
    errno.EADDRNOTAVAIL: ("this machine does not have the address", "correct --host"),
}
_QUIET = errors.HEALTH_PATHS | {"/metrics"}
_DOCS_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
}
# Called with the server's URL once the models are loaded.
Announce = Callable[[str, models.Catalogue], None]


def page() -> str:
    """Return the HTML with its style and script inlined."""
    return _part("page.html").replace("/* style */", _part("style.css")).replace("/* script */", _part("script.js"))


def headers() -> dict[str, str]:
    """Return headers that allow only this style and this script, by their hashes, and requests to this server."""
    return {
        "content-security-policy": f"default-src 'none'; style-src {_hash('style.css')}; "
        f"script-src {_hash('script.js')}; connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    }


def _part(name: str) -> str:
    return files("clozeline.serving").joinpath("playground", name).read_text(encoding="utf-8")


def _hash(name: str) -> str:
    digest = hashlib.sha256(_part(name).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.ApiError)
    return refusal(error, request.scope)


async def _from_router(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    made = {404: _no_route, 405: _wrong_method}.get(error.status_code, _other_status)
    return refusal(made(request, error), request.scope)


def _no_route(request: Request, error: HTTPException) -> errors.ApiError:
    dialects: Dialects = request.app.state.dialects
    paths = sorted(operation.path for operation in dialects.operations)
    near = difflib.get_close_matches(request.url.path, paths, n=1)
    return errors.refused(
        "no_such_route",
        given=f"{request.method} {bodies.asked_path(request.scope)}",
        expected=f"one of: {', '.join(paths)}",
        do=f"use {near[0]}" if near else None,
    )


def _wrong_method(request: Request, error: HTTPException) -> errors.ApiError:
    methods = sorted((error.headers or {}).get("Allow", "GET").split(", "))
    allowed = ", ".join(methods)
    return errors.refused(
        "wrong_method",
        given=f"{request.method} {bodies.asked_path(request.scope)}",
        expected=allowed,
        do=f"send {' or '.join(methods)} instead",
        headers={"allow": allowed},
    )


def _other_status(request: Request, error: HTTPException) -> errors.ApiError:
    phrase = HTTPStatus(error.status_code).phrase
    return errors.problem(
        error.status_code,
        phrase.lower().replace(" ", "_"),
        str(error.detail),
        given=f"{request.method} {bodies.asked_path(request.scope)}",
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
    if isinstance(error, tokenization.TextError):
        endpoint: Endpoint = request.scope["endpoint"]
        param = endpoint.operation.place(error.number)
        message = f"`{param}` {error.problem.removeprefix(f'text {error.number} ')}"
    detail = errors.problem(422, code, message, param=param, given=error.given, expected=error.expected, do=error.do)
    return refusal(detail, request.scope)


async def _unexpected(request: Request, error: Exception) -> Response:
    """Answer a fault of the middleware around `Faults`. Starlette raises it again, and uvicorn hangs up."""
    return refusal(_internal_error(request.method, request.url.path, hang_up=True), request.scope)


HANDLERS: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    errors.ApiError: _refused,
    HTTPException: _from_router,
    ClozelineError: _from_model,
    Exception: _unexpected,
}


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

        with errors.Caught() as caught:
            await self._app(scope, receive, noting)
        if caught.error is None:
            return
        if has_begun:
            raise caught.error  # the answer has begun: only hanging up tells the client
        _LOG.error("a request failed", exc_info=caught.error)
        await refusal(_internal_error(scope["method"], scope["path"]), scope)(scope, receive, send)


def _internal_error(method: str, path: str, *, hang_up: bool = False) -> errors.ApiError:
    headers = errors.CLOSE if hang_up else errors.NO_HEADERS
    return errors.refused("internal_error", given=f"{method} {path}", expected="an answer", headers=headers)


class RequestLog:
    """Logs `POST /embed 200 3.1 ms`; health checks and `/metrics` at debug level only."""

    def __init__(self, app: ASGIApp, service: models.Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = shown_status(scope, message)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            if "endpoint" not in scope:
                scope["endpoint"] = _endpoint_at(scope)
            path = shown_route(scope)
            level = logging.DEBUG if path in _QUIET else logging.INFO
            seconds = time.perf_counter() - started
            self._service.metrics.request(path, status, seconds)
            _LOG.log(level, "%s %s %s %.1f ms", shown_method(scope), path, status or "gone", 1000 * seconds)


def _endpoint_at(scope: Scope) -> object:
    """Return the endpoint of a request that was refused before routing; None if no route matches."""
    routes: list[BaseRoute] = scope["app"].routes
    found = (route.matches(scope) for route in routes)
    return next((child["endpoint"] for match, child in found if match is not Match.NONE), None)


def create_app(
    service: models.Service,
    keys: access.ApiKeys | None = None,
    bounds: limits.BodyBounds | None = None,
    dialects: Dialects = DIALECTS,
    hosts: access.AllowedHosts | None = None,
) -> Starlette:
    """Return the application over `service`. The worker threads of `service` end with it.

    It accepts requests with one of `keys` (None: all), bodies within `bounds`, and the host names of `hosts` (None:
    the loopback only).
    """
    keys = keys or access.ApiKeys()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = Starlette(
        routes=[
            *routes_of_all(dialects, service),
            *(Route(page.path, page, methods=["GET"]) for page in _pages()),
            Route("/openapi.json", _DocumentPage(service, keys, dialects), methods=["GET"]),
        ],
        middleware=[
            Middleware(bodies.ModelPrefix),
            Middleware(limits.OpenRequestsBound, service=service),
            Middleware(service.tracing.around),
            Middleware(RequestLog, service=service),
            Middleware(access.Access, service=service, keys=keys, hosts=hosts or access.AllowedHosts()),
            Middleware(limits.BodyLimit, service=service, bounds=bounds),
            Middleware(Faults),
        ],
        exception_handlers=HANDLERS,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.dialects = dialects
    app.state.open_requests = limits.OpenRequests()
    return app


@dataclass(frozen=True, slots=True)
class _Page:
    path: str
    html: str
    headers: Mapping[str, str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await HTMLResponse(self.html, headers=self.headers)(scope, receive, send)


def _pages() -> tuple[_Page, ...]:
    docs = files("clozeline.serving").joinpath("docs.html").read_text(encoding="utf-8")
    return _Page("/docs", docs, _DOCS_HEADERS), _Page("/", page(), headers())


class _DocumentPage:
    path = "/openapi.json"

    def __init__(self, service: models.Service, keys: access.ApiKeys, dialects: Dialects) -> None:
        self._service = service
        self._keys = keys
        self._document = openapi.OpenAPIDocument(dialects, access.OPEN_PATHS if keys.digests else None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Without a key, or before the models are loaded, the document lists all routes and so reveals no models.
        if self._service.phase == "loading" or not self._keys.accepts_key(Request(scope).headers):
            document = self._document.whole
        else:
            document = self._document.served(self._service.catalogue)
        await JsonResponse(document)(scope, receive, send)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where and how to serve."""

    host: str
    port: int  # 0: any free port
    capacity: models.Capacity
    precision: Precision | None  # None: chosen for each model, see loading.py
    keys: access.ApiKeys
    hosts: access.AllowedHosts
    watch_seconds: float  # interval between polls of the registry's aliases, in seconds; 0: never
    traces: bool = False  # whether OpenTelemetry gets spans of each request


def run(sources: Sequence[ModelSource], settings: ServerSettings, announce: Announce) -> None:
    """Serve `sources` until SIGTERM or Ctrl+C, then answer the accepted requests and exit with 0.

    That lasts until the last deadline of an accepted request; slow clients get a little longer. A further Ctrl+C ends
    all requests with 503, and the exit code is 130. The port is open while the models load: `/health/live` answers,
    routes that need a model answer 503.

    Raises:
        ParamsError: the port cannot be opened, or the address of the span collector is invalid.
        ArtifactError: a model is missing, or its files differ from the manifest.
        TransientError: the registry does not answer, memory does not suffice, or a worker thread failed.
    """
    listener = _listen(settings.host, settings.port)
    # One thread tokenizes; by default the tokenizer would use every core of the host.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    service = models.Service(settings.capacity, tracing(settings.traces))
    app = create_app(service, settings.keys, hosts=settings.hosts)

    watcher = watching.Watcher(service, sources, settings.precision, settings.watch_seconds)

    def load() -> None:
        catalogue = watcher.load()
        if service.phase == "stopping":
            return
        service.open(catalogue)
        watcher.start()
        announce(_url(listener), catalogue)

    try:
        uvicorn_adapter.ModelServer(uvicorn_adapter.configured(app), service, load).serve_until_told_to_stop(listener)
    finally:
        watcher.stop()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except socket.gaierror as error:
        raise ParamsError(
            f"the host name {host} cannot be resolved",
            do="correct --host: an address of this machine, such as 127.0.0.1 or 0.0.0.0",
        ) from error
    except (OSError, OverflowError) as error:
        reason, remedy = _CANNOT_LISTEN.get(getattr(error, "errno", 0), (str(error), "correct --host or --port"))
        raise ParamsError(f"cannot listen on {host} port {port}: {reason}", do=remedy) from error


def _url(listener: socket.socket) -> str:
    """Return the URL for clients on this machine. A wildcard address such as 0.0.0.0 becomes the loopback."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"
