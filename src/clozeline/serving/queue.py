"""The queue before the models: requests are admitted, wait in a line, and run in batches of similar length.

On a CPU batching gains at most a factor of 1.3, and padding costs as much as text. Micro-batches of a few hundred
tokens, from texts of similar length, are best. Measured on 2 AVX2 cores with 6 layers of 384 and mixed lengths: 414 ms
in micro-batches of 256 tokens, 439 of 512, 532 of 1,024, 752 of 4,096, and 436 ms one by one.

The line. A request's turn is its arrival plus a delay that grows with its tokens. Small requests therefore pass large
ones that came shortly before them. The delay is bounded, so no text starves. A turn never changes, so the line is a
heap. The text whose turn it is runs with texts of similar length that arrived in the same second. Without this limit,
under constant load, the last of several texts that arrived together would wait for many later ones (1.7 times as long,
with texts of 4 to 64 tokens and 10 s of work waiting).

Admission. A request is queued or refused as a whole. An admitted one is answered in bounded time: once its turn has
come, no other request passes it, and the work ahead of it is at most what admission allows.

Bulk requests. A bulk request needs more than half of the tokens or seconds that may wait. The turns of its texts are
spread over most of the time until its deadline. Before its turn, such a text lets others pass and runs only with texts
of similar length, but it does run if nothing else waits. From its turn on, it counts as a text that arrived then. Only
texts whose turn has come are due, and only due texts count, so bulk requests do not keep others out. All bulk requests
together are granted at most one second of work per second, so they do not increase the due work. It hardly ever exceeds
`max_waiting_tokens`, and the last text of a bulk request is answered little more than `max_wait_seconds` after its
turn.

Workers. They run models in threads, so that the event loop never blocks. ONNX Runtime and the tokenizer release the
GIL: N threads that share a session, each on one core, have 1.34 times the throughput of one session on N cores
(measured on 2 AVX2 cores). Their speed is measured while they run.
"""

import heapq
import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from string import punctuation
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import quote
from weakref import WeakKeyDictionary

from clozeline.inference.open_model import AnyQuestion, OpenModel, Rows
from clozeline.inference.tokenization import TokenizedText
from clozeline.records.package import Precision
from clozeline.serving.errors import Caught

BATCH_TOKENS = 384
"""Maximum number of tokens in a micro-batch, including padding."""
MAX_PADDING = 0.1
"""Largest share of padding in a micro-batch, 0-1."""
MIN_SHARE_TOKENS = 32
"""Fewer tokens are not split among workers."""
VERSION: Final = "x-model-version"
"""Header with the version that answered; in a request, the version that has to answer."""
Opened = TypeVar("Opened", bound=OpenModel, covariant=True)
YIELD_SECONDS_PER_TOKEN = 0.001
"""Delay of a request's turn for each of its tokens: about five times the cost of a token."""
MAX_YIELD_SECONDS = 2.0
_KEPT = 0.95
"""Factor on older measurements with each new micro-batch: about the last 20 count."""
MAX_WAITING_TOKENS = 65_536
MAX_WAIT_SECONDS = 10.0
_BULK = 0.5
_MAX_DELAY = 1.25
"""Upper bound of running time / seconds of due work: up to a tenth is padding, and some later texts run in the same
batches."""
_MAX_SPREAD_SECONDS = 600.0
Reason = Literal["crowded", "queue_full", "queue_slow", "tokenizer_full", "never_in_time"]
_JOIN_SECONDS = 5.0


def window(lengths: Sequence[int], anchor: int, *, budget_tokens: int) -> tuple[int, int]:
    """Return `low`, `high`: the slice of the ascending `lengths` that runs together with the one at `anchor`.

    The nearest lengths join first, as long as the padded slice fits the budget and has little padding.
    The anchor itself always runs, alone if it is longer than the budget.
    """
    low, high = anchor, anchor + 1
    tokens = lengths[anchor]

    def fits(place: int) -> bool:
        padded = max(lengths[place], lengths[high - 1]) * (high - low + 1)
        return padded <= budget_tokens and padded - tokens - lengths[place] <= MAX_PADDING * padded

    while True:
        beside = [place for place in (low - 1, high) if 0 <= place < len(lengths)]
        beside.sort(key=lambda place: abs(lengths[place] - lengths[anchor]))
        joining = next(filter(fits, beside), None)
        if joining is None:
            return low, high
        tokens += lengths[joining]
        low, high = min(low, joining), max(high, joining + 1)


def share(waiting_tokens: int, num_idle: int, budget_tokens: int) -> int:
    """Return the token budget of one of `num_idle` idle workers, so that none takes everything."""
    return min(budget_tokens, max(-(-waiting_tokens // num_idle), MIN_SHARE_TOKENS))


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of one loaded graph."""

    name: str
    """Name that clients use."""
    source: str
    """Registry URI or folder from which the model was loaded."""
    version: str
    sha256: str
    """Hash of the graph file."""
    precision: Precision
    precision_reason: str = ""
    """Why this precision was chosen."""

    @property
    def headers(self) -> dict[str, str]:
        # Percent-encoded: a folder name may hold characters that no header can carry.
        name = quote(self.name, safe=punctuation.replace("%", ""))
        return {"x-model": name, VERSION: self.version, "x-model-sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class ServedModel(Generic[Opened]):
    identity: Identity
    model: Opened


LoadedModel = ServedModel[OpenModel]


class Runnable(Protocol):
    """The part of a model that a lane needs."""

    def rows(self, texts: Sequence[TokenizedText], output: str) -> Sequence[Rows]: ...


@dataclass(frozen=True, slots=True)
class Lane:
    """Texts that can run together: they need the same output of the same model."""

    model: Runnable
    output: str


@dataclass(eq=False, slots=True)
class Ticket:
    """One inference job of a request, admitted as a whole. Times are those of the scheduler's clock."""

    lane: Lane
    question: AnyQuestion
    arrived_seconds: float
    deadline_seconds: float = math.inf
    """Time after which the texts are no longer run."""
    spread_seconds: float = field(init=False, default=0.0)
    """Seconds over which the turns of its texts are spread; 0: they come together."""
    entries: tuple["QueuedText", ...] = field(init=False)
    answers: list[Any] = field(init=False)
    """Answer to each text; None until the text has run."""
    num_left: int = field(init=False)
    """Number of texts that have not run."""
    num_waiting: int = field(init=False, default=0)
    """Number of texts in the line."""
    tokens: int = field(init=False)
    is_settled: bool = field(init=False, default=False)
    """Answered, failed or given up. Results of texts that still run are discarded."""
    error: BaseException | None = field(init=False, default=None)
    started_seconds: float | None = field(init=False, default=None)
    """Time at which its first text began to run."""

    def __post_init__(self) -> None:
        self.entries = tuple(QueuedText(self, position, len(text)) for position, text in enumerate(self.question.texts))
        self.num_left = len(self.entries)
        self.answers = [None] * self.num_left
        self.tokens = sum(entry.length for entry in self.entries)


@dataclass(eq=False, slots=True)
class QueuedText:
    """One text of a ticket."""

    ticket: Ticket
    position: int
    length: int
    """Length in tokens."""
    second: int = 0
    """Second of its arrival, or of its turn in a bulk request: a whole number on the scheduler's clock."""
    waits: bool = False
    is_later: bool = False
    """Whether it is a bulk text whose turn has not come. Admission of other requests does not count it."""

    @property
    def text(self) -> TokenizedText:
        text: TokenizedText = self.ticket.question.texts[self.position]
        return text


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Entries of one lane that run together."""

    lane: Lane
    entries: tuple[QueuedText, ...]

    @property
    def tokens(self) -> int:
        """Tokens without padding."""
        return sum(entry.length for entry in self.entries)

    @property
    def padded_tokens(self) -> int:
        return max(entry.length for entry in self.entries) * len(self.entries)


def turn_of(ticket: Ticket) -> float:
    return ticket.arrived_seconds + min(ticket.tokens * YIELD_SECONDS_PER_TOKEN, MAX_YIELD_SECONDS)


def turns_of(ticket: Ticket) -> list[float]:
    """Return the turn of each text."""
    if not ticket.spread_seconds:
        return [turn_of(ticket)] * len(ticket.entries)
    seconds_per_token = ticket.spread_seconds / ticket.tokens
    upto = accumulate(entry.length for entry in ticket.entries)
    return [ticket.arrived_seconds + tokens * seconds_per_token for tokens in upto]


_Turns = list[tuple[float, int, QueuedText]]
SecondsFor = Callable[[Runnable, float], float]
"""Returns the seconds that a model takes for a number of tokens."""


class Line:
    """All waiting texts. Not thread-safe."""

    def __init__(self, batch_tokens: int = BATCH_TOKENS) -> None:
        self._batch_tokens = batch_tokens
        self._turns: _Turns = []
        self._later: _Turns = []
        """Texts of bulk requests whose turn has not come."""
        self._later_tokens = 0
        self._bulk: dict[Ticket, None] = {}
        self._shelves: dict[_Place, _Shelf] = {}
        self._numbers = count()
        self.num_texts = 0
        self.tokens = 0

    def add(self, ticket: Ticket) -> None:
        is_bulk = ticket.spread_seconds > 0
        for turn in zip(turns_of(ticket), self._numbers, ticket.entries, strict=False):
            heapq.heappush(self._turns, turn)
            if is_bulk:
                heapq.heappush(self._later, turn)
            entry = turn[2]
            entry.second = int(turn[0] if is_bulk else ticket.arrived_seconds)
            entry.waits, entry.is_later = True, is_bulk
            self._shelf(entry).add(entry)
        ticket.num_waiting = len(ticket.entries)
        self.num_texts += len(ticket.entries)
        self.tokens += ticket.tokens
        if is_bulk:
            self._later_tokens += ticket.tokens
            self._bulk[ticket] = None

    def pass_time(self, now_seconds: float) -> None:
        """Mark bulk texts as due if their turn has come by `now_seconds`."""
        while self._later and self._later[0][0] <= now_seconds:
            entry = heapq.heappop(self._later)[2]
            if entry.waits:
                self._take_off(entry)
                entry.is_later = False
                self._later_tokens -= entry.length
                self._shelf(entry).add(entry)

    @property
    def due_tokens(self) -> int:
        """Waiting tokens, without those of bulk texts whose turn has not come."""
        return self.tokens - self._later_tokens

    def seconds(self, seconds_for: SecondsFor) -> float:
        """Return the seconds of work that wait."""
        return sum(seconds_for(place.lane.model, shelf.tokens) for place, shelf in self._shelves.items())

    def due_seconds(self, seconds_for: SecondsFor) -> float:
        """Return the seconds of waiting work that is due."""
        due = ((place.lane, shelf) for place, shelf in self._shelves.items() if place.second is not None)
        return sum(seconds_for(lane.model, shelf.tokens) for lane, shelf in due)

    def promised(self, seconds_for: SecondsFor) -> float:
        """Return the share of each second that is promised to bulk requests whose last text still waits."""
        return sum(seconds_for(ticket.lane.model, ticket.tokens) / ticket.spread_seconds for ticket in self._bulk)

    def remove(self, ticket: Ticket) -> None:
        """Remove the texts of `ticket` that still wait."""
        waiting = [entry for entry in ticket.entries if entry.waits]
        for entry in waiting:
            self._take_off(entry)
        if waiting:
            self._left(waiting)

    def take(self, num_idle: int = 1) -> MicroBatch | None:
        """Take the text whose turn it is with others of similar length; `num_idle` workers share the waiting tokens."""
        while self._turns and not self._turns[0][2].waits:
            heapq.heappop(self._turns)
        if not self._turns:
            return None
        first = self._turns[0][2]
        shelf = self._shelf(first)
        budget_tokens = share(self.tokens, num_idle, self._batch_tokens)
        entries = shelf.take(*window(shelf.lengths, shelf.place_of(first), budget_tokens=budget_tokens))
        self._left(entries)
        self._forget_if_empty(first)
        return MicroBatch(first.ticket.lane, tuple(entries))

    def _shelf(self, entry: QueuedText) -> "_Shelf":
        return self._shelves.setdefault(_place(entry), _Shelf())

    def _take_off(self, entry: QueuedText) -> None:
        self._shelf(entry).remove(entry)
        self._forget_if_empty(entry)

    def _forget_if_empty(self, entry: QueuedText) -> None:
        if not self._shelf(entry).entries:
            del self._shelves[_place(entry)]  # hold no reference to a replaced model

    def _left(self, entries: list[QueuedText]) -> None:
        for entry in entries:
            entry.waits = False
            entry.ticket.num_waiting -= 1
            if not entry.ticket.num_waiting:
                self._bulk.pop(entry.ticket, None)
        self.num_texts -= len(entries)
        self.tokens -= sum(entry.length for entry in entries)
        self._later_tokens -= sum(entry.length for entry in entries if entry.is_later)
        self._turns = self._without_finished_turns(self._turns)
        self._later = self._without_finished_turns(self._later)

    def _without_finished_turns(self, turns: _Turns) -> _Turns:
        """Return `turns`, without the finished ones if they are the majority."""
        if len(turns) <= 2 * self.num_texts + 64:
            return turns
        waiting = [turn for turn in turns if turn[2].waits]
        heapq.heapify(waiting)
        return waiting


class _Place(NamedTuple):
    """Key of a shelf, whose texts may run together."""

    lane: Lane
    second: int | None
    """None: texts of bulk requests whose turn has not come."""


def _place(entry: QueuedText) -> _Place:
    return _Place(entry.ticket.lane, None if entry.is_later else entry.second)


class _Shelf:
    """The waiting texts of one key, by length; equal lengths in order of arrival."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.entries: list[QueuedText] = []
        self.tokens = 0

    def add(self, entry: QueuedText) -> None:
        place = bisect_right(self.lengths, entry.length)
        self.lengths.insert(place, entry.length)
        self.entries.insert(place, entry)
        self.tokens += entry.length

    def place_of(self, entry: QueuedText) -> int:
        return self.entries.index(entry, bisect_left(self.lengths, entry.length))

    def remove(self, entry: QueuedText) -> None:
        place = self.place_of(entry)
        self.take(place, place + 1)

    def take(self, low: int, high: int) -> list[QueuedText]:
        taken = self.entries[low:high]
        self.tokens -= sum(self.lengths[low:high])
        del self.lengths[low:high], self.entries[low:high]
        return taken


class Pace:
    """Seconds per token of `num_workers` workers together."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def is_measured(self) -> bool:
        return self._tokens > 0

    def note(self, tokens: int, seconds: float) -> None:
        """Record that a worker ran `tokens`, including padding, in `seconds`."""
        self._tokens = _KEPT * self._tokens + tokens
        self._seconds = _KEPT * self._seconds + seconds

    def seconds_for(self, tokens: float) -> float:
        """Return the seconds that all workers together take for `tokens`; 0 before the first measurement."""
        return tokens * self._seconds / self._tokens / self._num_workers if self._tokens else 0.0


class Paces:
    """The pace of each model. Models of one server can differ by a factor of 100."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._of: WeakKeyDictionary[Runnable, Pace] = WeakKeyDictionary()  # keeps no reference to a replaced model
        self.of_all = Pace(num_workers)

    def note(self, model: Runnable, tokens: int, seconds: float) -> None:
        self.of(model).note(tokens, seconds)
        self.of_all.note(tokens, seconds)

    def of(self, model: Runnable) -> Pace:
        return self._of.setdefault(model, Pace(self._num_workers))

    def known_of(self, model: Runnable) -> Pace:
        """Return the pace of `model`; the pace of all models if it has not run yet."""
        pace = self.of(model)
        return pace if pace.is_measured else self.of_all


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason to refuse a request, and the time after which a retry makes sense."""

    reason: Reason
    given: str
    expected: str
    retry_after_seconds: int | None
    """None: even an idle server would refuse it."""


@dataclass(frozen=True, slots=True)
class Asks:
    """Work of one request."""

    tokens: int
    patience_seconds: float = math.inf
    """Seconds until its deadline."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Work that waits when a request arrives."""

    seconds: float
    """Seconds of all waiting work, at the pace of each model."""
    due_seconds: float
    """Seconds of the work that is due: it excludes bulk texts whose turn has not come."""
    due_tokens: int
    """Tokens of the work that is due."""
    promised: float = 0.0
    """Share of each second that is promised to bulk requests."""


@dataclass(frozen=True, slots=True)
class Admission:
    max_waiting_tokens: int = MAX_WAITING_TOKENS
    """Maximum number of tokens that may be due, and so ahead of any request."""
    max_wait_seconds: float = MAX_WAIT_SECONDS
    """Maximum seconds of work that may be due, at the measured pace."""

    def spread_seconds(self, asks: Asks, pace: Pace, batch_tokens: int) -> float:
        """Return the seconds over which the turns of a bulk request are spread; 0 for any other request.

        A request that fits one micro-batch is never bulk. The last turn leaves time for the work that may be due by
        then; a request with less than twice that time spreads its turns over half of its time.
        """
        share = max(asks.tokens / self.max_waiting_tokens, pace.seconds_for(asks.tokens) / self.max_wait_seconds)
        if share <= _BULK or asks.tokens <= batch_tokens:
            return 0.0
        patience_seconds = min(max(0.0, asks.patience_seconds), _MAX_SPREAD_SECONDS)
        return max(patience_seconds - _MAX_DELAY * self.max_wait_seconds, patience_seconds / 2)

    def refusal(self, waiting: Waiting, asks: Asks, pace: Pace) -> Refusal | None:
        """Return the reason to refuse a request that is not bulk; None if it may wait.

        `pace`, here and below, is that of its model. If nothing is due, the request may wait.
        """
        if not waiting.due_tokens:
            return None
        together = waiting.due_tokens + asks.tokens
        if together > self.max_waiting_tokens:
            return Refusal(
                "queue_full",
                given=f"{together:,} waiting tokens with this request",
                expected=f"at most {self.max_waiting_tokens:,} waiting tokens",
                retry_after_seconds=_whole(pace.seconds_for(together - self.max_waiting_tokens)),
            )
        seconds = waiting.due_seconds + pace.seconds_for(asks.tokens)
        return _slow(seconds, min(self.max_wait_seconds, asks.patience_seconds), "with this request")

    def bulk_refusal(self, waiting: Waiting, asks: Asks, spread_seconds: float, pace: Pace) -> Refusal | None:
        """Return the reason to refuse a bulk request; None if it may wait.

        An admitted request is in time if no more work is due at its last turn than now, or if its turns leave time for
        the maximum.
        """
        seconds = pace.seconds_for(asks.tokens)
        if waiting.promised + seconds / spread_seconds <= 1:
            # The work that is due at its last turn runs before its last text.
            return _slow(waiting.due_seconds, asks.patience_seconds - spread_seconds, "that is due")
        return Refusal(
            "queue_slow",
            given=f"{seconds:.1f} s of work, besides other large requests",
            expected=f"at most {max(0.0, 1 - waiting.promised) * spread_seconds:.1f} s of work",
            retry_after_seconds=_whole(waiting.seconds),
        )


def never_in_time(asks: Asks, spread_seconds: float, pace: Pace) -> Refusal | None:
    """Return why a request would be late even on an idle server; None if it would not.

    `pace` is that of full micro-batches, a lower bound: small requests take longer per token, and may be tried.
    """
    seconds, most = pace.seconds_for(asks.tokens), spread_seconds or asks.patience_seconds
    if seconds <= most or asks.patience_seconds <= 0:  # a passed deadline is reported elsewhere
        return None
    return Refusal(
        "never_in_time",
        given=f"{asks.tokens:,} tokens, which take {seconds:.1f} s here",
        expected=f"at most {most:.1f} s of work, because the deadline is in {asks.patience_seconds:.1f} s",
        retry_after_seconds=None,
    )


def _slow(seconds: float, most: float, of_what: str) -> Refusal | None:
    if seconds <= most:
        return None
    return Refusal(
        "queue_slow",
        given=f"{seconds:.1f} s of waiting work {of_what}",
        expected=f"at most {most:g} s of waiting work",
        retry_after_seconds=_whole(seconds - most),
    )


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))


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

    def _admitted(self, asks: Asks, later_tokens: int, model: Runnable) -> float:
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

    def _seconds_for(self, model: Runnable, tokens: float) -> float:
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

    def _settles(self, entry: QueuedText, answer: object) -> bool:
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


Observe = Callable[[MicroBatch, float], None]
"""Called with each micro-batch that ran and its duration in seconds."""


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


def _answer(entry: QueuedText, rows: Rows) -> object:
    with Caught() as caught:
        return entry.ticket.question.answer(entry.position, rows)
    return caught.error
