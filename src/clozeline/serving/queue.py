"""The line of the waiting texts, and the turns of a model's versions.

The line tells whose turn it is, and which texts of similar length run together.

On a CPU batching gains at most a factor of 1.3, and padding costs as much as text. Micro-batches of a few hundred
tokens, from texts of similar length, are best. Measured on 2 AVX2 cores with 6 layers of 384 and mixed lengths: 414 ms
in micro-batches of 256 tokens, 439 of 512, 532 of 1,024, 752 of 4,096, and 436 ms one by one.

A request's turn is its arrival plus a delay that grows with its tokens. Small requests therefore pass large ones that
came shortly before them. The delay is bounded, so no text starves. A turn never changes, so the line is a heap. The
text whose turn it is runs with texts of similar length that arrived in the same second. Without this limit, under
constant load, the last of several texts that arrived together would wait for many later ones (1.7 times as long, with
texts of 4 to 64 tokens and 10 s of work waiting).

The turns of the texts of a bulk request (admission.py) are spread over most of the time until its deadline. Before its
turn, such a text lets others pass and runs only with texts of similar length, but it does run if nothing else waits.
From its turn on, it counts as a text that arrived then. Only texts whose turn has come are due.

At each moment every replica of a fleet answers by the same version.

A new champion is announced so long before its turn that every replica has read of it by then. So the version that
answers at a moment follows from what was known long before, and from the clock; the replicas need not speak.

Clocks differ. From the beginning of a turn on no replica answers by the version before, and for `SKEW_SECONDS` requests
wait. So no client gets the old version after the new one unless two clocks differ by more.
"""

import heapq
import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from typing import Any, Protocol

from clozeline.inference import open_model, tokenization
from clozeline.registry.models import Announcement
from clozeline.serving.loading import LoadedModel

# Maximum number of tokens in a micro-batch, including padding.
BATCH_TOKENS = 384
# Largest share of padding in a micro-batch, 0-1.
MAX_PADDING = 0.1
# Fewer tokens are not split among workers.
MIN_SHARE_TOKENS = 32
# Delay of a request's turn for each of its tokens: about five times the cost of a token.
YIELD_SECONDS_PER_TOKEN = 0.001
MAX_YIELD_SECONDS = 2.0
# Largest difference of two replicas' clocks at which no old answer follows a new one.
SKEW_SECONDS = 0.5
_NEVER = float("-inf")

# Answers for a model name by this model; by these others if a request names their version; the last are not loaded.
Offer = Callable[[str, LoadedModel, Sequence[LoadedModel], Collection[str]], None]


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


class Runnable(Protocol):
    """The part of a model that a lane needs."""

    def rows(self, texts: Sequence[tokenization.TokenizedText], output: str) -> Sequence[open_model.Rows]: ...


@dataclass(frozen=True, slots=True)
class Lane:
    """Texts that can run together: they need the same output of the same model."""

    model: Runnable
    output: str


@dataclass(eq=False, slots=True)
class Ticket:
    """One inference job of a request, admitted as a whole. Times are those of the scheduler's clock."""

    lane: Lane
    question: open_model.AnyQuestion
    arrived_seconds: float
    deadline_seconds: float = math.inf  # time after which the texts are no longer run
    # Seconds over which the turns of its texts are spread; 0: they come together.
    spread_seconds: float = field(init=False, default=0.0)
    entries: tuple["QueuedText", ...] = field(init=False)
    answers: list[Any] = field(init=False)  # answer to each text; None until the text has run
    num_left: int = field(init=False)  # number of texts that have not run
    tokens: int = field(init=False)
    # Answered, failed or given up. Results of texts that still run are discarded.
    is_settled: bool = field(init=False, default=False)
    error: BaseException | None = field(init=False, default=None)
    started_seconds: float | None = field(init=False, default=None)  # time at which its first text began to run

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
    length: int  # length in tokens
    shelf: "_Shelf | None" = None  # where it waits; None: it does not

    @property
    def text(self) -> tokenization.TokenizedText:
        text: tokenization.TokenizedText = self.ticket.question.texts[self.position]
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


class _Shelf:
    """Waiting texts that may run together, by length; equal lengths in order of arrival."""

    def __init__(self, lane: Lane, second: int | None) -> None:
        self.lane = lane
        # Second of their arrival, or of their turn in a bulk request: a whole number on the scheduler's clock. None:
        # texts of bulk requests whose turn has not come.
        self.second = second
        self.lengths: list[int] = []
        self.entries: list[QueuedText] = []
        self.tokens = 0

    def add(self, entry: QueuedText) -> None:
        place = bisect_right(self.lengths, entry.length)
        self.lengths.insert(place, entry.length)
        self.entries.insert(place, entry)
        self.tokens += entry.length
        entry.shelf = self

    def place_of(self, entry: QueuedText) -> int:
        return self.entries.index(entry, bisect_left(self.lengths, entry.length))

    def take(self, low: int, high: int) -> list[QueuedText]:
        taken = self.entries[low:high]
        self.tokens -= sum(self.lengths[low:high])
        del self.lengths[low:high], self.entries[low:high]
        for entry in taken:
            entry.shelf = None
        return taken


_Turns = list[tuple[float, int, QueuedText]]


class Line:
    """All waiting texts. Not thread-safe."""

    def __init__(self, batch_tokens: int = BATCH_TOKENS) -> None:
        self._batch_tokens = batch_tokens
        self._turns: _Turns = []
        self._later: _Turns = []  # texts of bulk requests whose turn has not come
        self._shelves: dict[tuple[Lane, int | None], _Shelf] = {}
        self._numbers = count()
        self.bulk: dict[Ticket, None] = {}  # bulk requests of which a text still waits
        self.num_texts = 0
        self.tokens = 0

    def add(self, ticket: Ticket) -> None:
        is_bulk = ticket.spread_seconds > 0
        shelf = self._shelf(ticket.lane, None if is_bulk else int(ticket.arrived_seconds))
        for turn in zip(turns_of(ticket), self._numbers, ticket.entries, strict=False):
            heapq.heappush(self._turns, turn)
            if is_bulk:
                heapq.heappush(self._later, turn)
            shelf.add(turn[2])
        self.num_texts += len(ticket.entries)
        self.tokens += ticket.tokens
        if is_bulk:
            self.bulk[ticket] = None

    def pass_time(self, now_seconds: float) -> None:
        """Mark bulk texts as due if their turn has come by `now_seconds`."""
        while self._later and self._later[0][0] <= now_seconds:
            turn_seconds, _, entry = heapq.heappop(self._later)
            if entry.shelf:
                place = entry.shelf.place_of(entry)
                self._taken(entry.shelf, place, place + 1)
                self._shelf(entry.ticket.lane, int(turn_seconds)).add(entry)

    def work(self) -> Iterator[tuple[Runnable, int, bool]]:
        """Yield all that waits: models, their tokens, and whether these are due."""
        return ((shelf.lane.model, shelf.tokens, shelf.second is not None) for shelf in self._shelves.values())

    def remove(self, ticket: Ticket) -> None:
        """Remove the texts of `ticket` that still wait."""
        waiting = [(entry, entry.shelf) for entry in ticket.entries if entry.shelf]
        for entry, shelf in waiting:
            place = shelf.place_of(entry)
            self._taken(shelf, place, place + 1)
        if waiting:
            self._left([entry for entry, _ in waiting])

    def take(self, num_idle: int = 1) -> MicroBatch | None:
        """Take the text whose turn it is with others of similar length; `num_idle` workers share the waiting tokens."""
        while self._turns:
            first = self._turns[0][2]
            if first.shelf:
                lengths, place = first.shelf.lengths, first.shelf.place_of(first)
                budget_tokens = share(self.tokens, num_idle, self._batch_tokens)
                entries = self._taken(first.shelf, *window(lengths, place, budget_tokens=budget_tokens))
                self._left(entries)
                return MicroBatch(first.ticket.lane, tuple(entries))
            heapq.heappop(self._turns)
        return None

    def _shelf(self, lane: Lane, second: int | None) -> _Shelf:
        shelf = self._shelves.get((lane, second))
        if shelf is None:
            shelf = self._shelves[lane, second] = _Shelf(lane, second)
        return shelf

    def _taken(self, shelf: _Shelf, low: int, high: int) -> list[QueuedText]:
        taken = shelf.take(low, high)
        if not shelf.entries:
            del self._shelves[shelf.lane, shelf.second]  # hold no reference to a replaced model
        return taken

    def _left(self, entries: Sequence[QueuedText]) -> None:
        for bulk in self.bulk.keys() & {entry.ticket for entry in entries}:
            if not any(entry.shelf for entry in bulk.entries):
                del self.bulk[bulk]
        self.num_texts -= len(entries)
        self.tokens -= sum(entry.length for entry in entries)
        self._turns = self._without_finished_turns(self._turns)
        self._later = self._without_finished_turns(self._later)

    def _without_finished_turns(self, turns: _Turns) -> _Turns:
        """Return `turns`, without the finished ones if they are the majority."""
        if len(turns) <= 2 * self.num_texts + 64:
            return turns
        waiting = [turn for turn in turns if turn[2].shelf]
        heapq.heapify(waiting)
        return waiting


@dataclass(frozen=True, slots=True)
class VersionTurn:
    """A version and when it answers."""

    version: str
    announcement: Announcement

    @property
    def starts_seconds(self) -> float:
        return self.announcement.serve_from_seconds

    @property
    def load_by_seconds(self) -> float:
        """A replica that has not loaded it by then is not ready, so that its load balancer knows it by the turn."""
        return self.starts_seconds - (self.starts_seconds - self.announcement.announced_seconds) / 4

    def is_taken_back_by(self, later: Announcement) -> bool:
        """Whether the next champion came so early that no replica may answer by this one.

        After half of the notice a replica may miss the next champion until this one's turn, so the turn stays.
        """
        halfway = (self.announcement.announced_seconds + self.starts_seconds) / 2
        return later.announced_seconds <= halfway or later.serve_from_seconds <= self.starts_seconds


@dataclass(frozen=True, slots=True)
class VersionTurns:
    """The version whose turn it is, and those that follow."""

    current: str = ""  # empty: the first turn has not come yet
    started_seconds: float = _NEVER
    coming: tuple[VersionTurn, ...] = ()

    def at(self, seconds: float) -> "VersionTurns":
        """Return the turns as they are at this time: those that have begun but for the last one are dropped."""
        begun = [turn for turn in self.coming if turn.starts_seconds <= seconds]
        if not begun:
            return self
        return VersionTurns(begun[-1].version, begun[-1].starts_seconds, self.coming[len(begun) :])

    def followed_by(self, version: str, announcement: Announcement) -> "VersionTurns":
        """Return these turns with that of the present champion as the last one."""
        kept = tuple(turn for turn in self.coming if not turn.is_taken_back_by(announcement))
        last = kept[-1].version if kept else self.current
        return replace(self, coming=kept if version == last else (*kept, VersionTurn(version, announcement)))

    @property
    def versions(self) -> frozenset[str]:
        return frozenset({self.current, *(turn.version for turn in self.coming)}) - {""}


@dataclass(frozen=True, slots=True)
class Plan:
    """The turns of one model and its loaded versions."""

    turns: VersionTurns
    loaded: Mapping[str, LoadedModel] = field(default_factory=dict)

    @classmethod
    def only(cls, model: LoadedModel) -> "Plan":
        """Return the plan of a model that answers now, and that nothing follows."""
        version = model.identity.version
        return cls(VersionTurns(version), {version: model})

    def at(self, seconds: float) -> "Plan":
        """Return the plan at this moment, without the versions whose turn is over."""
        turns = self.turns.at(seconds)
        kept = {version: model for version, model in self.loaded.items() if version in turns.versions}
        return Plan(turns, kept)

    def answers(self, seconds: float) -> bool:
        return self.turns.at(seconds).current in self.loaded

    def is_ready(self, seconds: float) -> bool:
        """Whether it answers now, and has loaded what answers soon."""
        soon = [turn.version for turn in self.turns.coming if turn.load_by_seconds <= seconds]
        return self.answers(seconds) and all(version in self.loaded for version in soon)


class VersionSchedule:
    """The plans of the models that follow an alias. Any thread may look; a look makes the changes that are due."""

    def __init__(self, offer: Offer, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns the seconds since 1970; those of other machines are compared with it."""
        self._offer = offer
        self.clock = clock
        self._plans: dict[str, Plan] = {}
        self._lock = threading.Lock()

    def plan(self, name: str) -> Plan | None:
        return self._plans.get(name)

    def set(self, name: str, plan: Plan) -> None:
        with self._lock:
            self._take(name, plan)

    @property
    def answers(self) -> bool:
        """Whether each model whose turn it is is loaded."""
        return all(plan.answers(self.clock()) for plan in self._plans.values())

    @property
    def is_ready(self) -> bool:
        """Whether requests should be sent here: each model whose turn is near is loaded, too."""
        return all(plan.is_ready(self.clock()) for plan in self._plans.values())

    def seconds_to_wait(self) -> float:
        """Make the changes that are due; return how long requests have to wait until all other replicas made them."""
        seconds = self.clock()
        if any(plan.turns.at(seconds) is not plan.turns for plan in self._plans.values()):
            with self._lock:
                for name, plan in self._plans.items():
                    self._take(name, plan)
        started = max((plan.turns.started_seconds for plan in self._plans.values()), default=_NEVER)
        return max(0.0, started + SKEW_SECONDS - seconds)

    def _take(self, name: str, plan: Plan) -> None:
        plan = plan.at(self.clock())
        self._plans = {**self._plans, name: plan}  # other threads may be iterating over it
        current = plan.loaded.get(plan.turns.current)
        if current:
            others = [model for model in plan.loaded.values() if model is not current]
            self._offer(name, current, others, plan.turns.versions - plan.loaded.keys())
