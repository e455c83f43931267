"""`/models/NAME` before the path of any route: the model called NAME answers there.

For clients that know a base URL and cannot send a name, as those of text-embeddings-inference and of Hugging Face's
pipelines. Routes that tell of the server itself say the same behind it.
"""

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

from clozeline.serving.errors import problem

_PREFIX = "/models/"
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
    name: str | None = scope.get(_NAME)
    path: str = scope["path"]
    return path if name is None else f"{_PREFIX}{name}{path}"


def wanted_model(scope: Scope, name: str | None = None) -> str | None:
    """Which model is to answer: the one before the path, or `name`, of the body; None: whichever can.

    Raises:
        ApiError: 422, the two are not the same.
    """
    prefixed: str | None = scope.get(_NAME)
    if prefixed is None or name is None or name == prefixed:
        return prefixed or name
    raise problem(
        422,
        "two_models",
        "the path names one model and the request another",
        given=f"{_PREFIX}{prefixed} and {name}",
        expected="one name",
        do="leave `model` out, or ask without the prefix",
        param="model",
    )


def _without_prefix(scope: Scope) -> Scope:
    if scope["type"] != "http" or not scope["path"].startswith(_PREFIX):
        return scope
    name, _, path = scope["path"].removeprefix(_PREFIX).partition("/")
    return {**scope, "path": f"/{path}", _NAME: name} if name and path else scope
