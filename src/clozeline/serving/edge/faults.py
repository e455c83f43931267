"""A fault of the server in the middle of a request: its traceback in the log, and the one envelope for the client."""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozeline.serving.caught import Caught
from clozeline.serving.protocols.dialects import refusal
from clozeline.serving.refusals import internal_error

_LOG = logging.getLogger(__name__)


class Faults:
    """Innermost, so that what is around it counts, logs, and gives its headers to a 500 as to any other answer."""

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

        with Caught() as caught:
            await self._app(scope, receive, noting)
        if caught.error is None:
            return
        if has_begun:
            raise caught.error  # half an answer is out: only hanging up tells
        _LOG.error("a request failed", exc_info=caught.error)
        await refusal(internal_error(scope["method"], scope["path"]), scope["path"])(scope, receive, send)
