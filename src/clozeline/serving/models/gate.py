"""The gate before the models: requests pass, wait for a moment, or are sent to another replica."""

import asyncio
from typing import Literal

from clozeline.serving.errors import not_ready
from clozeline.serving.scheduling.refusals import deadline_passed

State = Literal["open", "held", "behind"]
"""`held`: the fleet is about to answer by another version. `behind`: this replica lacks the version of its fleet."""


class Gate:
    """Open unless the server belongs to a fleet. Any thread may set its state; only the event loop waits."""

    def __init__(self) -> None:
        self.state: State = "open"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    def set(self, state: State) -> None:
        """Let requests that come from now on pass, wait, or be refused; those that wait look again."""
        self.state = state
        if self._loop and not self._loop.is_closed():  # None: nobody has ever waited
            self._loop.call_soon_threadsafe(self._wake)

    async def passed(self, seconds: float) -> None:
        """Return once the gate is open.

        Raises:
            ApiError: 503, this replica lacks the version of its fleet; 504, the gate stayed held for `seconds`.
        """
        self._loop = asyncio.get_running_loop()  # before the look at the state: `set` does both the other way round
        until = self._loop.time() + seconds
        while self.state == "held":
            waiting = self._loop.create_future()
            self._waiting.add(waiting)
            try:
                await asyncio.wait_for(waiting, until - self._loop.time())
            except TimeoutError:
                raise deadline_passed(seconds) from None
            finally:
                self._waiting.discard(waiting)
        if self.state == "behind":
            raise not_ready("loading")

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
