"""`/models/NAME` before the path of any route: the model called NAME answers.

For clients that know a base URL and cannot send a name, such as those of text-embeddings-inference and of Hugging
Face's pipelines. The prefix changes nothing on routes about the server itself.
"""

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/models/"
_NAME = "clozeline.encoder"
"""Key of a scope: the model name from the path prefix."""


class ModelPrefix:
    """Removes the prefix: every middleware within, and the route, see the path of the route alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._app(without_prefix(scope), receive, send)


def asked_path(scope: Scope) -> str:
    """Return the whole path, as the client sent it."""
    name, path = prefixed_name(scope), str(scope["path"])
    return path if name is None else f"{PREFIX}{name}{path}"


def prefixed_name(scope: Scope) -> str | None:
    """Return the name before the path, if there is one."""
    name: str | None = scope.get(_NAME)
    return name


def without_prefix(scope: Scope) -> Scope:
    """Return the scope with the prefix removed from the path; the same scope without a prefix."""
    if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
        return scope
    name, _, path = scope["path"].removeprefix(PREFIX).partition("/")
    return {**scope, "path": f"/{path}", _NAME: name} if name and path else scope
