"""The scheduler before the models: admits requests, and hands micro-batches to the worker threads.

Workers run models in threads, so that the event loop never blocks. ONNX Runtime and the tokenizer release the GIL: N
threads that share a session, each on one core, have 1.34 times the throughput of one session on N cores (measured on 2
AVX2 cores). Their speed is measured while they run.
"""

import threading
import time
from collections.abc import Callable, Sequence

from clozeline.inference.open_model import Rows
from clozeline.serving import errors, queue
from clozeline.serving.admission import Admission, Asks, Paces, Waiting, check_bulk, check_in_time

_JOIN_SECONDS = 5.0
# Called in any thread with settled tickets, once for each. Must not call the scheduler.
Deliver = Callable[[Sequence[queue.Ticket]], None]


class DeadlineError(Exception):
    """The deadline of a ticket passed while texts of it still waited."""


class Scheduler:
    """Thread-safe. Only `take` blocks."""

    def __init__(
        self,
        num_workers: int,
        deliver: Deliver,
        *,
        admission: Admission | None = None,
        batch_tokens: int = queue.BATCH_TOKENS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._deliver = deliver
        self._admission = admission or Admission()
        self._paces = Paces(num_workers)
        # Paces over micro-batches that were at least half full, where a token costs least.
        self._full_paces = Paces(num_workers)
        self._batch_tokens = batch_tokens
        self._line = queue.Line(batch_tokens)
        self._num_idle = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def waiting_tokens(self) -> int:
        return self._line.tokens

    def check_open(self) -> None:
        """Check, before a request is even tokenized, whether any request would be admitted.

        Raises:
            OverloadedError: no request would be admitted now.
        """
        with self._changed:
            self._admission.check(self._waiting(), Asks(tokens=1), self._paces.of_all)

    def submit(self, *tickets: queue.Ticket, later_tokens: int = 0) -> None:
        """Queue `tickets`, all for one model: all or none. `deliver` gets each of them once it is settled.

        `later_tokens`: most tokens of the tickets that follow from their answers (`follow`); 0: none follow.

        Raises:
            OverloadedError: too much waits already, or the tickets cannot be answered before their deadline.
        """
        deadline_seconds = min(ticket.deadline_seconds for ticket in tickets)
        asks = Asks(sum(ticket.tokens for ticket in tickets), deadline_seconds - self.clock())
        with self._changed:
            assert not self._closed, "the server stops after its last request"
            spread_seconds = self._admitted(asks, later_tokens, tickets[0].lane.model)
            for ticket in tickets:
                ticket.spread_seconds = spread_seconds
                self._add(ticket)

    def follow(self, ticket: queue.Ticket) -> None:
        """Queue a ticket of a request that was admitted with its `later_tokens`: it is not refused."""
        with self._changed:
            assert not self._closed, "the server stops after its last request"
            self._add(ticket)

    def give_up(self, ticket: queue.Ticket) -> None:
        """Drop `ticket`: its waiting texts never run, and it is not delivered."""
        with self._changed:
            self._line.remove(ticket)
            ticket.is_settled = True

    def take(self) -> queue.MicroBatch | None:
        """Wait for the next micro-batch and return it; None if the scheduler is closed and nothing is left."""
        with self._changed:
            self._num_idle += 1
            while (batch := self._next()) is None and not self._closed:
                self._changed.wait()
            self._num_idle -= 1
            return batch

    def hand_back(self, batch: queue.MicroBatch, answers: Sequence[object], seconds: float) -> None:
        """Take the result of `batch`, which ran for `seconds`: an answer or an exception for each entry."""
        with self._changed:
            self._paces.note(batch.lane.model, batch.padded_tokens, seconds)
            if batch.padded_tokens >= self._batch_tokens / 2:
                self._full_paces.note(batch.lane.model, batch.padded_tokens, seconds)
            pairs = zip(batch.entries, answers, strict=True)
            settled = [entry.ticket for entry, answer in pairs if self._settles(entry, answer)]
            if settled:
                self._deliver(settled)

    def close(self) -> None:
        """Let `take` return None once nothing waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _add(self, ticket: queue.Ticket) -> None:
        self._line.add(ticket)
        self._changed.notify(min(len(ticket.entries), -(-ticket.tokens // queue.MIN_SHARE_TOKENS)))

    def _admitted(self, asks: Asks, later_tokens: int, model: queue.Runnable) -> float:
        """Return the seconds over which the turns of the texts are spread; 0 if they come together.

        They come together if other tickets follow from them, which would come too late otherwise.

        Raises:
            OverloadedError: the request is not admitted.
        """
        pace, full_pace = self._paces.known_of(model), self._full_paces.of(model)
        spread_seconds = 0.0 if later_tokens else self._admission.spread_seconds(asks, full_pace, self._batch_tokens)
        check_in_time(Asks(asks.tokens + later_tokens, asks.patience_seconds), spread_seconds, full_pace)
        if spread_seconds:
            check_bulk(self._waiting(), asks, spread_seconds, full_pace)
        else:
            self._admission.check(self._waiting(), asks, pace)
        return spread_seconds

    def _waiting(self) -> Waiting:
        self._line.pass_time(self.clock())
        work = [
            (tokens, self._paces.known_of(model).seconds_for(tokens), is_due)
            for model, tokens, is_due in self._line.work()
        ]
        return Waiting(
            sum(seconds for _, seconds, _ in work),
            sum(seconds for _, seconds, is_due in work if is_due),
            sum(tokens for tokens, _, is_due in work if is_due),
            sum(
                self._full_paces.of(bulk.lane.model).seconds_for(bulk.tokens) / bulk.spread_seconds
                for bulk in self._line.bulk
            ),
        )

    def _next(self) -> queue.MicroBatch | None:
        """Return the next micro-batch, if any. Tickets past their deadline fail and do not run."""
        now_seconds = self.clock()
        self._line.pass_time(now_seconds)
        while batch := self._line.take(self._num_idle):
            late = {entry.ticket: None for entry in batch.entries if entry.ticket.deadline_seconds <= now_seconds}
            for ticket in late:
                self._fail(ticket, DeadlineError())
            if late:
                self._deliver(list(late))
            in_time = tuple(entry for entry in batch.entries if entry.ticket not in late)
            for entry in in_time:
                if entry.ticket.started_seconds is None:
                    entry.ticket.started_seconds = now_seconds
            if in_time:
                return queue.MicroBatch(batch.lane, in_time)
        return None

    def _settles(self, entry: queue.QueuedText, answer: object) -> bool:
        """Record the answer to one text; return whether it settles the ticket."""
        ticket = entry.ticket
        if ticket.is_settled:
            return False
        if isinstance(answer, BaseException):
            self._fail(ticket, answer)
            return True
        ticket.answers[entry.position] = answer
        ticket.num_left -= 1
        ticket.is_settled = ticket.num_left == 0
        return ticket.is_settled

    def _fail(self, ticket: queue.Ticket, error: BaseException) -> None:
        self._line.remove(ticket)
        ticket.error = error
        ticket.is_settled = True


# Called with each micro-batch that ran and its duration in seconds.
Observe = Callable[[queue.MicroBatch, float], None]


class WorkerDiedError(Exception):
    """The worker thread ended while it ran the text."""


class BatchWorkers:
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
        name = threading.current_thread().name
        while batch := self._scheduler.take():
            answers: Sequence[object] = [WorkerDiedError()] * len(batch.entries)
            self._began_seconds[name] = self._scheduler.clock()
            try:
                answers = _answers(batch)
            finally:
                seconds = self._scheduler.clock() - self._began_seconds.pop(name)
                self._scheduler.hand_back(batch, answers, seconds)
            self._observe(batch, seconds)


def _answers(batch: queue.MicroBatch) -> list[object]:
    """Return an answer or an exception for each entry. An error of the graph fails every entry."""
    with errors.Caught() as caught:
        found = batch.lane.model.rows([entry.text for entry in batch.entries], batch.lane.output)
    if caught.error:
        return [caught.error] * len(batch.entries)
    return [_answer(entry, rows) for entry, rows in zip(batch.entries, found, strict=True)]


def _answer(entry: queue.QueuedText, rows: Rows) -> object:
    with errors.Caught() as caught:
        return entry.ticket.question.answer(entry.position, rows)
    return caught.error
