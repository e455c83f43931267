"""Line, admission and pace under one lock: handlers submit and give up tickets, workers take and hand back batches."""

import threading
import time
from collections.abc import Callable, Sequence

from clozeline.serving.scheduling.admission import Admission, Asks, Refusal, Waiting, never_in_time
from clozeline.serving.scheduling.line import Line
from clozeline.serving.scheduling.pace import Paces
from clozeline.serving.scheduling.window import BATCH_TOKENS, MIN_SHARE_TOKENS
from clozeline.serving.scheduling.work import Entry, MicroBatch, Model, Ticket

Deliver = Callable[[Sequence[Ticket]], None]
"""Called in any thread with settled tickets, once for each. Must not call the scheduler."""


class OverloadedError(Exception):
    """A ticket was not admitted; none of its texts runs."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


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
        batch_tokens: int = BATCH_TOKENS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._deliver = deliver
        self._admission = admission or Admission()
        self._paces = Paces(num_workers)
        self._full_paces = Paces(num_workers)
        """Paces over micro-batches that were at least half full, where a token costs least."""
        self._batch_tokens = batch_tokens
        self._line = Line(batch_tokens)
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
            self._raise(self._admission.refusal(self._waiting(), Asks(tokens=1), self._paces.of_all))

    def submit(self, *tickets: Ticket, later_tokens: int = 0) -> None:
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

    def follow(self, ticket: Ticket) -> None:
        """Queue a ticket of a request that was admitted with its `later_tokens`: it is not refused."""
        with self._changed:
            assert not self._closed, "the server stops after its last request"
            self._add(ticket)

    def give_up(self, ticket: Ticket) -> None:
        """Drop `ticket`: its waiting texts never run, and it is not delivered."""
        with self._changed:
            self._line.remove(ticket)
            ticket.is_settled = True

    def take(self) -> MicroBatch | None:
        """Wait for the next micro-batch and return it; None if the scheduler is closed and nothing is left."""
        with self._changed:
            self._num_idle += 1
            while (batch := self._next()) is None and not self._closed:
                self._changed.wait()
            self._num_idle -= 1
            return batch

    def hand_back(self, batch: MicroBatch, answers: Sequence[object], seconds: float) -> None:
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

    def _add(self, ticket: Ticket) -> None:
        self._line.add(ticket)
        self._changed.notify(min(len(ticket.entries), -(-ticket.tokens // MIN_SHARE_TOKENS)))

    def _admitted(self, asks: Asks, later_tokens: int, model: Model) -> float:
        """Return the seconds over which the turns of the texts are spread; 0 if they come together.

        They come together if other tickets follow from them, which would come too late otherwise.

        Raises:
            OverloadedError: the request is not admitted.
        """
        pace, full_pace = self._paces.known_of(model), self._full_paces.of(model)
        spread_seconds = 0.0 if later_tokens else self._admission.spread_seconds(asks, full_pace, self._batch_tokens)
        whole = Asks(asks.tokens + later_tokens, asks.patience_seconds)
        self._raise(never_in_time(whole, spread_seconds, full_pace))
        waiting = self._waiting()
        if spread_seconds:
            self._raise(self._admission.bulk_refusal(waiting, asks, spread_seconds, full_pace))
        else:
            self._raise(self._admission.refusal(waiting, asks, pace))
        return spread_seconds

    def _raise(self, refusal: Refusal | None) -> None:
        if refusal:
            raise OverloadedError(refusal)

    def _waiting(self) -> Waiting:
        self._line.pass_time(self.clock())
        return Waiting(
            self._line.seconds(self._seconds_for),
            self._line.due_seconds(self._seconds_for),
            self._line.due_tokens,
            self._line.promised(lambda model, tokens: self._full_paces.of(model).seconds_for(tokens)),
        )

    def _seconds_for(self, model: Model, tokens: float) -> float:
        return self._paces.known_of(model).seconds_for(tokens)

    def _next(self) -> MicroBatch | None:
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
                return MicroBatch(batch.lane, in_time)
        return None

    def _settles(self, entry: Entry, answer: object) -> bool:
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

    def _fail(self, ticket: Ticket, error: BaseException) -> None:
        self._line.remove(ticket)
        ticket.error = error
        ticket.is_settled = True
