"""HEAD for every route that answers GET (RFC 9110, 9.1): what it would answer, without the body.

Load balancers probe with it. The document of the API says GET alone.
"""

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadRequests:
    """Asks `app` with GET where a client asked with HEAD; the server then leaves out the body and keeps its length."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # a copy: the server, the log and the counts are to know what was asked
        await self._app(scope, receive, send)


def answered_methods(methods: str) -> list[str]:
    """`methods` of a route, parted by commas, and HEAD where GET is among them."""
    listed = set(methods.split(", "))
    return sorted(listed | {"HEAD"} if "GET" in listed else listed)
