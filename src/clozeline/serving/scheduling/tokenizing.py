"""Tokenization of requests: short ones in the event loop, long ones in a thread with a bounded queue."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from clozeline.serving.scheduling.admission import Refusal
from clozeline.serving.scheduling.scheduler import OverloadedError

Made = TypeVar("Made")
Wait = Callable[["asyncio.Future[Any]"], Awaitable[None]]
"""Returns once the future is done; raises if its request ends before."""

_INLINE_CHARACTERS = 4_096
"""Requests up to this length are tokenized in the event loop: a thread would cost more. Longer ones would block it."""
_MAX_WAITING_CHARACTERS = 8 * 2**20


class TokenizerThread:
    """A single thread tokenizes, because the cores belong to the workers."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="clozeline-tokenizer")
        self._waiting_characters = 0

    async def made(
        self, work: Callable[[], Made], num_characters: int, wait: Wait, *, is_admitted: bool = False
    ) -> Made:
        """Return the result of `work` on this number of characters. If `wait` raises before `work` begins, it never
        runs.

        Raises:
            OverloadedError: too much waits, and the request is not admitted yet.
        """
        if num_characters <= _INLINE_CHARACTERS:
            return work()
        if self._waiting_characters > _MAX_WAITING_CHARACTERS and not is_admitted:
            raise OverloadedError(
                Refusal(
                    "tokenizer_full",
                    given=f"{self._waiting_characters:,} characters before this request",
                    expected=f"at most {_MAX_WAITING_CHARACTERS:,} characters that wait to be tokenized",
                    retry_after_seconds=1,
                )
            )
        self._waiting_characters += num_characters
        making = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            await wait(making)
            return making.result()
        finally:
            making.cancel()
            self._waiting_characters -= num_characters

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
