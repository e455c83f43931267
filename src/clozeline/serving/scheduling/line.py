"""The line: whose turn it is, and who goes along.

A request's turn is when it arrived, plus a wait that grows with its tokens. Small requests therefore pass large ones
that came shortly before them, and nobody is passed by what came later than that wait: no text starves. A turn never
changes, so the line is a heap.
"""

import heapq
from bisect import bisect_left, bisect_right
from itertools import count

from clozeline.serving.scheduling.window import BATCH_TOKENS, share, window
from clozeline.serving.scheduling.work import Entry, Lane, MicroBatch, Ticket

YIELD_SECONDS_PER_TOKEN = 0.001
"""By how much a request's turn comes later for each of its tokens: about what a token costs, times five."""
MAX_YIELD_SECONDS = 2.0


def turn_of(ticket: Ticket) -> float:
    return ticket.arrived_seconds + min(ticket.tokens * YIELD_SECONDS_PER_TOKEN, MAX_YIELD_SECONDS)


class Line:
    """Everything that waits. Not safe to use from two threads."""

    def __init__(self, batch_tokens: int = BATCH_TOKENS) -> None:
        self._batch_tokens = batch_tokens
        self._turns: list[tuple[float, int, Entry]] = []
        self._shelves: dict[Lane, _Shelf] = {}
        self._numbers = count()
        self.num_texts = 0
        self.tokens = 0

    def add(self, ticket: Ticket) -> None:
        turn = turn_of(ticket)
        shelf = self._shelves.setdefault(ticket.lane, _Shelf())
        for entry in ticket.entries:
            entry.waits = True
            heapq.heappush(self._turns, (turn, next(self._numbers), entry))
            shelf.add(entry)
        self.num_texts += len(ticket.entries)
        self.tokens += ticket.tokens

    def remove(self, ticket: Ticket) -> None:
        """Take out what still waits of `ticket`."""
        waiting = [entry for entry in ticket.entries if entry.waits]
        for entry in waiting:
            self._shelves[ticket.lane].remove(entry)
        if waiting:
            self._left(ticket.lane, waiting)

    def take(self, num_idle: int = 1) -> MicroBatch | None:
        """The entry whose turn it is, with those of nearly its length; `num_idle` workers share what waits."""
        while self._turns and not self._turns[0][2].waits:
            heapq.heappop(self._turns)
        if not self._turns:
            return None
        first = self._turns[0][2]
        lane = first.ticket.lane
        shelf = self._shelves[lane]
        budget_tokens = share(self.tokens, num_idle, self._batch_tokens)
        entries = shelf.take(*window(shelf.lengths, shelf.place_of(first), budget_tokens=budget_tokens))
        self._left(lane, entries)
        return MicroBatch(lane, tuple(entries))

    def _left(self, lane: Lane, entries: list[Entry]) -> None:
        for entry in entries:
            entry.waits = False
        self.num_texts -= len(entries)
        self.tokens -= sum(entry.length for entry in entries)
        if not self._shelves[lane].entries:
            del self._shelves[lane]  # a model that was replaced is let go of
        if len(self._turns) > 2 * self.num_texts + 64:
            self._turns = [turn for turn in self._turns if turn[2].waits]
            heapq.heapify(self._turns)


class _Shelf:
    """What waits in one lane, by length; of equal lengths, in the order they came."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        place = bisect_right(self.lengths, entry.length)
        self.lengths.insert(place, entry.length)
        self.entries.insert(place, entry)

    def place_of(self, entry: Entry) -> int:
        return self.entries.index(entry, bisect_left(self.lengths, entry.length))

    def remove(self, entry: Entry) -> None:
        place = self.place_of(entry)
        self.take(place, place + 1)

    def take(self, low: int, high: int) -> list[Entry]:
        taken = self.entries[low:high]
        del self.lengths[low:high], self.entries[low:high]
        return taken
