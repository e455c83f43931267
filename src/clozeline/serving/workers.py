"""The threads that run models, so that the event loop only ever waits.

ONNX Runtime and the tokenizer release the GIL: one session that runs on one core in each of N threads answers
1.34 times as much as one session that runs on N cores (measured on 2 AVX2 cores).
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from clozeline.serving.errors import problem
from clozeline.serving.limits import MAX_WAITING_REQUESTS

Answer = TypeVar("Answer")


def available_cores() -> int:
    """Cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Runs one request in each thread; the others wait in line, up to `max_waiting`."""

    def __init__(self, num_threads: int, max_waiting: int = MAX_WAITING_REQUESTS) -> None:
        self.num_threads = num_threads
        self._max_admitted = num_threads + max_waiting
        self.num_admitted = 0
        """Requests that run or wait in line."""
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="clozeline-worker")

    async def run(self, answer: Callable[[], Answer]) -> Answer:
        """What `answer()` returns, computed in a worker thread.

        Raises:
            ApiError: 429, the line is full; nothing was computed.
        """
        if self.num_admitted >= self._max_admitted:
            raise problem(
                429,
                "overloaded",
                "more requests wait than this server holds",
                given=f"{self.num_admitted} requests before this one",
                expected=f"at most {self._max_admitted}",
                do="wait as long as Retry-After says, then send it again",
                headers={"retry-after": "1"},
            )
        self.num_admitted += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, answer)
        finally:
            self.num_admitted -= 1

    def close(self) -> None:
        """Let the threads finish what they have begun; what waits in line is dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)
