"""The line decides the order in which waiting texts run, and which texts run together.

A request's turn is its arrival plus a delay that grows with its tokens. Small requests therefore pass large ones that
came shortly before them. The delay is bounded, so no text starves. A turn never changes, so the line is a heap.
The text whose turn it is runs with texts of similar length that arrived in the same second. Without this limit, under
constant load, the last of several texts that arrived together would wait for many later ones (1.7 times as long, with
texts of 4 to 64 tokens and 10 s of work waiting).

Each text of a bulk request (admission.py) has its own turn. The turns are spread over most of the time until the
deadline. Before its turn, such a text lets others pass and runs only with texts of similar length, but it does run if
nothing else waits. From its turn on, it counts as a text that arrived then.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate, count
from typing import NamedTuple

from clozeline.serving.scheduling.window import BATCH_TOKENS, share, window
from clozeline.serving.scheduling.work import Entry, Lane, MicroBatch, Model, Ticket

YIELD_SECONDS_PER_TOKEN = 0.001
"""Delay of a request's turn for each of its tokens: about five times the cost of a token."""
MAX_YIELD_SECONDS = 2.0


def turn_of(ticket: Ticket) -> float:
    return ticket.arrived_seconds + min(ticket.tokens * YIELD_SECONDS_PER_TOKEN, MAX_YIELD_SECONDS)


def turns_of(ticket: Ticket) -> list[float]:
    """Return the turn of each text."""
    if not ticket.spread_seconds:
        return [turn_of(ticket)] * len(ticket.entries)
    seconds_per_token = ticket.spread_seconds / ticket.tokens
    upto = accumulate(entry.length for entry in ticket.entries)
    return [ticket.arrived_seconds + tokens * seconds_per_token for tokens in upto]


_Turns = list[tuple[float, int, Entry]]
SecondsFor = Callable[[Model, float], float]
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

    def _shelf(self, entry: Entry) -> "_Shelf":
        return self._shelves.setdefault(_place(entry), _Shelf())

    def _take_off(self, entry: Entry) -> None:
        self._shelf(entry).remove(entry)
        self._forget_if_empty(entry)

    def _forget_if_empty(self, entry: Entry) -> None:
        if not self._shelf(entry).entries:
            del self._shelves[_place(entry)]  # hold no reference to a replaced model

    def _left(self, entries: list[Entry]) -> None:
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


def _place(entry: Entry) -> _Place:
    return _Place(entry.ticket.lane, None if entry.is_later else entry.second)


class _Shelf:
    """The waiting texts of one key, by length; equal lengths in order of arrival."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.entries: list[Entry] = []
        self.tokens = 0

    def add(self, entry: Entry) -> None:
        place = bisect_right(self.lengths, entry.length)
        self.lengths.insert(place, entry.length)
        self.entries.insert(place, entry)
        self.tokens += entry.length

    def place_of(self, entry: Entry) -> int:
        return self.entries.index(entry, bisect_left(self.lengths, entry.length))

    def remove(self, entry: Entry) -> None:
        place = self.place_of(entry)
        self.take(place, place + 1)

    def take(self, low: int, high: int) -> list[Entry]:
        taken = self.entries[low:high]
        self.tokens -= sum(self.lengths[low:high])
        del self.lengths[low:high], self.entries[low:high]
        return taken
