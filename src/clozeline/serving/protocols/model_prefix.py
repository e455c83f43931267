"""`/models/NAME` before the path of any route: the model called NAME answers there.

For clients that know a base URL and cannot send a name, as those of text-embeddings-inference and of Hugging Face's
pipelines. Routes that tell of the server itself say the same behind it.
"""

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/models/"
_NAME = "clozeline.encoder"
"""Key of a scope under which the name is that stood before its path."""


class ModelPrefix:
    """Outermost: whoever is within, from the keys to the counts, sees the path of the route and nothing before it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._app(_without_prefix(scope), receive, send)


def asked_path(scope: Scope) -> str:
    """The whole path, as the client sent it."""
    name, path = prefixed_name(scope), str(scope["path"])
    return path if name is None else f"{PREFIX}{name}{path}"


def prefixed_name(scope: Scope) -> str | None:
    """The name before the path."""
    name: str | None = scope.get(_NAME)
    return name


def _without_prefix(scope: Scope) -> Scope:
    if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
        return scope
    name, _, path = scope["path"].removeprefix(PREFIX).partition("/")
    return {**scope, "path": f"/{path}", _NAME: name} if name and path else scope
