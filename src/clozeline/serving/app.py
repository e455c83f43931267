"""The ASGI application: routes, errors, limits and log around one `Service`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.routing import iter_route_contexts
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from clozeline.serving import playground, routes, span_routes, status_routes, zero_shot
from clozeline.serving.direct import Direct
from clozeline.serving.edge.access import OPEN_PATHS, Access, ApiKeys
from clozeline.serving.edge.body_limit import BodyBounds, BodyLimit
from clozeline.serving.edge.faults import Faults
from clozeline.serving.edge.handlers import add_handlers
from clozeline.serving.edge.request_log import RequestLog
from clozeline.serving.head_requests import HeadRequests
from clozeline.serving.models.service import Service
from clozeline.serving.openapi import DESCRIPTION, ask_for_keys
from clozeline.serving.protocols import (
    embeddings_inference,
    huggingface,
    inference_protocol,
    mlflow,
    openai,
    rerank,
    tokens,
)
from clozeline.serving.protocols.model_prefix import ModelPrefix
from clozeline.serving.responses import JsonResponse
from clozeline.serving.served_document import served_document

_DOCS_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
}


ROUTERS = (
    routes.router,
    span_routes.router,
    zero_shot.router,
    status_routes.router,
    openai.router,
    embeddings_inference.router,
    rerank.router,
    tokens.router,
    huggingface.router,
    inference_protocol.router,
    mlflow.router,
)
"""Every route but the pages. A router of another protocol joins here; its paths of each task join catalogue.ROUTES."""


def create_app(service: Service, keys: ApiKeys | None = None, bounds: BodyBounds | None = None) -> FastAPI:
    """The application over `service`, for everybody or for those who have one of `keys`, with bodies in `bounds`.

    The worker threads of `service` end with the application.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="Clozeline",
        version=version("clozeline"),
        description=DESCRIPTION,
        lifespan=lifespan,
        middleware=[
            Middleware(ModelPrefix),
            Middleware(service.tracing.around),
            Middleware(RequestLog, service=service),
            Middleware(Access, service=service, keys=keys or ApiKeys()),
            Middleware(BodyLimit, service=service, bounds=bounds),
            Middleware(Faults),
        ],
        # Its spans would hold paths and queries as clients wrote them; spans.py has ours.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        # FastAPI's own pages fetch their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # Its own document is that of every route; ours is of those that are answered.
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    add_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    _add_pages(app)
    _add_document(app, service, keys or ApiKeys())
    # Within what turns errors into answers: what a route raises is told as it always is.
    app.router.middleware_stack = direct(HeadRequests(app.router.middleware_stack), service)
    if keys and keys.digests:
        ask_for_keys(app.openapi(), OPEN_PATHS)
    # FastAPI works out what its routes take when they are first gone through: here nobody waits for it.
    told = (context for context in iter_route_contexts(app.routes) if getattr(context, "include_in_schema", False))
    app.state.paths = sorted({context.path for context in told})
    return app


def direct(app: ASGIApp, service: Service) -> Direct:
    """The short way to the routes of `app`."""
    return Direct(app, [route for router in ROUTERS for route in router.routes], service.cache)


def _add_document(app: FastAPI, service: Service, keys: ApiKeys) -> None:
    @app.get("/openapi.json", include_in_schema=False)
    async def document(request: Request) -> Response:
        # Who may not know which models there are, and who comes before they are, hears of all routes.
        if service.phase == "loading" or not keys.let_in(request.headers):
            return JsonResponse(app.openapi())
        return JsonResponse(served_document(app.openapi(), service.catalogue))


def _add_pages(app: FastAPI) -> None:
    docs_page = files("clozeline.serving").joinpath("docs.html").read_text(encoding="utf-8")
    playground_page, playground_headers = playground.page(), playground.headers()

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page, headers=_DOCS_HEADERS)

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return HTMLResponse(playground_page, headers=playground_headers)
