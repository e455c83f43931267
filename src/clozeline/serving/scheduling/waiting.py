"""Wait for the work of another thread, but only as long as the client waits."""

import asyncio
from typing import Any, Literal

from starlette.requests import Request

_WATCH_AFTER_SECONDS = 0.02
"""Time after which the server begins to watch whether the client leaves."""

Outcome = Literal["done", "late", "left", "stopped"]


async def outcome(
    awaited: "asyncio.Future[Any]", request: Request, timeout_seconds: float, stopped: "asyncio.Future[None]"
) -> Outcome:
    """Wait for `awaited` and return how the wait ended. `awaited` is never cancelled.

    The wait also ends once `stopped` is done.
    """
    until_seconds = asyncio.get_running_loop().time() + timeout_seconds
    done, _ = await asyncio.wait({awaited}, timeout=max(0.0, min(_WATCH_AFTER_SECONDS, timeout_seconds)))
    if done:
        return "done"
    leaving = asyncio.ensure_future(_leaves(request))
    try:
        left_seconds = max(0.0, until_seconds - asyncio.get_running_loop().time())
        await asyncio.wait({awaited, leaving, stopped}, timeout=left_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
    if awaited.done():
        return "done"
    if stopped.done():
        return "stopped"
    return "left" if leaving.done() and not leaving.cancelled() else "late"


async def _leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
