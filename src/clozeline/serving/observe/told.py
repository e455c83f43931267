"""What is told of a request, in its line of the log and in its span: nothing that a client wrote."""

import asyncio

from starlette.types import Message, Scope

_CLIENT_LEFT = 499
LISTENER = "clozeline.listener"
"""Key of a scope under which wire.py gives the transport that the answer will take."""


def told_route(scope: Scope) -> str:
    """The route that was asked for, as the application wrote it: each endpoint has a path."""
    path: str = getattr(scope.get("endpoint"), "path", "(no route)")
    return path


def told_status(scope: Scope, start: Message) -> int:
    """The status of the answer that begins with `start`; 499 where nobody is there to hear it."""
    listener: asyncio.BaseTransport | None = scope.get(LISTENER)
    status: int = start["status"]
    return _CLIENT_LEFT if listener and listener.is_closing() else status


def told_method(scope: Scope) -> str:
    """The method, which is the client's word too: any token is one."""
    method: str = scope["method"]
    return method[:10] if method.isalpha() else "?"
