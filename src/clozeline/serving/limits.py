"""How much one client may ask for at once, and the middleware that stops a body in time."""

from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozeline.serving.dialects import refusal
from clozeline.serving.errors import problem

MAX_BODY_BYTES = 2 * 2**20
MAX_TEXTS = 256
MAX_TEXT_CHARACTERS = 100_000
"""Many times what any model reads: a text beyond it would only be tokenized, for seconds, to be cut or refused."""
MAX_TOP_K = 100
MAX_TIMEOUT_MILLISECONDS = 600_000

_MAX_DRAINED_BYTES = 16 * MAX_BODY_BYTES
"""Read and thrown away of a body that is too large: a client still sending would not see an early answer."""


@dataclass(frozen=True, slots=True)
class _Body:
    content: bytes
    too_large: bool
    left: bool
    """The client went away before the end."""


class BodyLimit:
    """Reads the body before the application does, so that 413 comes for any route, with a length or chunked."""

    def __init__(self, app: ASGIApp, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await self._body(scope, receive)
        if body.left:
            return
        if body.too_large:
            await self._refusal(scope, receive, send)
            return
        await self._app(scope, _replaying(body.content, receive), send)

    async def _body(self, scope: Scope, receive: Receive) -> _Body:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        asks_first = b"expect" in headers
        if asks_first and declared.isdigit() and int(declared) > self._max_body_bytes:
            return _Body(b"", too_large=True, left=False)
        parts: list[bytes] = []
        size_bytes = 0
        while size_bytes <= _MAX_DRAINED_BYTES:
            message = await receive()
            if message["type"] == "http.disconnect":
                return _Body(b"", too_large=False, left=True)
            part: bytes = message.get("body", b"")
            size_bytes += len(part)
            if size_bytes <= self._max_body_bytes:
                parts.append(part)
            if not message.get("more_body", False):
                break
        return _Body(b"".join(parts), too_large=size_bytes > self._max_body_bytes, left=False)

    async def _refusal(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = problem(
            413,
            "body_too_large",
            "the body of the request is too large",
            given=f"more than {self._max_body_bytes:,} bytes",
            expected=f"at most {self._max_body_bytes:,} bytes",
            do="send the texts in several requests",
            headers={"connection": "close"},
        )
        await refusal(error, scope["path"])(scope, receive, send)


def _replaying(content: bytes, receive: Receive) -> Receive:
    replayed = False

    async def replay() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": content, "more_body": False}

    return replay
