"""The ASGI application: pages, OpenAPI document and protocols around one `Service`, behind the middleware of edge/."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from clozeline.serving import playground
from clozeline.serving.edge.access import OPEN_PATHS, Access, ApiKeys
from clozeline.serving.edge.body_limit import BodyBounds, BodyLimit
from clozeline.serving.edge.faults import HANDLERS, Faults
from clozeline.serving.edge.hosts import AllowedHosts
from clozeline.serving.edge.open_requests import OpenRequests, OpenRequestsBound
from clozeline.serving.edge.request_log import RequestLog
from clozeline.serving.models.service import Service
from clozeline.serving.protocols.dialects import Dialects
from clozeline.serving.protocols.endpoint import routes_of_all
from clozeline.serving.protocols.model_prefix import ModelPrefix
from clozeline.serving.protocols.openapi import Document
from clozeline.serving.protocols.operation import JsonResponse
from clozeline.serving.protocols.table import DIALECTS

_DOCS_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
}


def create_app(
    service: Service,
    keys: ApiKeys | None = None,
    bounds: BodyBounds | None = None,
    dialects: Dialects = DIALECTS,
    hosts: AllowedHosts | None = None,
) -> Starlette:
    """Return the application over `service`. The worker threads of `service` end with it.

    It accepts requests with one of `keys` (None: all), bodies within `bounds`, and the host names of `hosts` (None:
    the loopback only).
    """
    keys = keys or ApiKeys()

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
            Middleware(ModelPrefix),
            Middleware(OpenRequestsBound, service=service),
            Middleware(service.tracing.around),
            Middleware(RequestLog, service=service),
            Middleware(Access, service=service, keys=keys, hosts=hosts or AllowedHosts()),
            Middleware(BodyLimit, service=service, bounds=bounds),
            Middleware(Faults),
        ],
        exception_handlers=HANDLERS,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.dialects = dialects
    app.state.open_requests = OpenRequests()
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
    return _Page("/docs", docs, _DOCS_HEADERS), _Page("/", playground.page(), playground.headers())


class _DocumentPage:
    path = "/openapi.json"

    def __init__(self, service: Service, keys: ApiKeys, dialects: Dialects) -> None:
        self._service = service
        self._keys = keys
        self._document = Document(dialects, OPEN_PATHS if keys.digests else None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Without a key, or before the models are loaded, the document lists all routes and so reveals no models.
        if self._service.phase == "loading" or not self._keys.accepts_key(Request(scope).headers):
            document = self._document.whole
        else:
            document = self._document.served(self._service.catalogue)
        await JsonResponse(document)(scope, receive, send)
