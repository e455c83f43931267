"""Worker threads that run models, so that the event loop never blocks.

ONNX Runtime and the tokenizer release the GIL. N threads that share a session, each on one core, have 1.34 times the
throughput of one session on N cores (measured on 2 AVX2 cores).
"""

import threading
from collections.abc import Callable, Sequence

from clozeline.inference.question import Rows
from clozeline.serving.errors import Caught
from clozeline.serving.scheduling.scheduler import Scheduler
from clozeline.serving.scheduling.work import Entry, MicroBatch

_JOIN_SECONDS = 5.0

Observe = Callable[[MicroBatch, float], None]
"""Called with each micro-batch that ran and its duration in seconds."""


class WorkerDiedError(Exception):
    """The worker thread ended while it ran the text."""


class Workers:
    """`num_threads` threads that run the micro-batches of `scheduler` until it is closed."""

    def __init__(self, scheduler: Scheduler, num_threads: int, observe: Observe) -> None:
        self._scheduler = scheduler
        self._observe = observe
        self._began_seconds: dict[str, float] = {}
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"clozeline-worker-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_threads(self) -> int:
        return len(self._threads)

    @property
    def num_running(self) -> int:
        """Number of micro-batches that run now."""
        return len(self._began_seconds)

    def fault(self, stall_seconds: float) -> str | None:
        """Return which threads ended, or have run one micro-batch for more than `stall_seconds`; None if none."""
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        if dead and not self._closing:
            return f"{', '.join(dead)} ended"
        now_seconds = self._scheduler.clock()
        stalled = [name for name, began in list(self._began_seconds.items()) if now_seconds - began > stall_seconds]
        return f"{', '.join(stalled)}: in one micro-batch for more than {stall_seconds:g} s" if stalled else None

    def close(self) -> None:
        """Close the scheduler, and give each thread `_JOIN_SECONDS` to finish the admitted work."""
        self._closing = True
        self._scheduler.close()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def _work(self) -> None:
        while batch := self._scheduler.take():
            self._run(batch, threading.current_thread().name)

    def _run(self, batch: MicroBatch, name: str) -> None:
        answers: Sequence[object] = [WorkerDiedError()] * len(batch.entries)
        began_seconds = self._scheduler.clock()
        self._began_seconds[name] = began_seconds
        try:
            answers = _answers(batch)
        finally:
            del self._began_seconds[name]
            seconds = self._scheduler.clock() - began_seconds
            self._scheduler.hand_back(batch, answers, seconds)
        self._observe(batch, seconds)


def _answers(batch: MicroBatch) -> list[object]:
    """Return an answer or an exception for each entry. An error of the graph fails every entry."""
    with Caught() as caught:
        found = batch.lane.model.rows([entry.text for entry in batch.entries], batch.lane.output)
    if caught.error:
        return [caught.error] * len(batch.entries)
    return [_answer(entry, rows) for entry, rows in zip(batch.entries, found, strict=True)]


def _answer(entry: Entry, rows: Rows) -> object:
    with Caught() as caught:
        return entry.ticket.question.answer(entry.position, rows)
    return caught.error
