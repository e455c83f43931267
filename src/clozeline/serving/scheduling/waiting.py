"""Waiting for what another thread makes, no longer than anybody waits for it."""

import asyncio
from typing import Any, Literal

from starlette.requests import Request

_WATCH_AFTER_SECONDS = 0.02
"""Only of a request that takes longer is it watched whether its client has left."""

Outcome = Literal["done", "late", "left", "stopped"]


async def outcome(
    awaited: "asyncio.Future[Any]", request: Request, timeout_seconds: float, stopped: "asyncio.Future[None]"
) -> Outcome:
    """How the wait for `awaited` ended; it is not cancelled where nobody waits for it any more.

    Once `stopped` is done nothing is waited for.
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
