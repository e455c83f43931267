"""The line chooses whose turn it is and which texts run along, and no text starves."""

from hypothesis import given
from hypothesis import strategies as st

from clozeline.serving.queue import MAX_PADDING, Lane, Line, Ticket, share, turn_of, turns_of, window
from tests.make.tickets import LANE, ticket

Requests = list[tuple[list[int], float]]
# Lengths of the texts, and arrival, of each request.
requests = st.lists(
    st.tuples(st.lists(st.integers(1, 512), min_size=1, max_size=6), st.floats(0, 5)), min_size=1, max_size=25
)
lengths_and_anchor = st.lists(st.integers(1, 600), min_size=1, max_size=60).flatmap(
    lambda lengths: st.tuples(st.just(sorted(lengths)), st.integers(0, len(lengths) - 1))
)


def line_of(*tickets: Ticket, batch_tokens: int = 384) -> Line:
    line = Line(batch_tokens)
    for one in tickets:
        line.add(one)
    return line


def tickets_of(given_requests: Requests) -> list[Ticket]:
    return [ticket(*lengths, arrived=arrived) for lengths, arrived in given_requests]


def waits(one: Ticket) -> bool:
    return any(entry.shelf for entry in one.entries)


def batches_of(line: Line) -> list[list[tuple[Ticket, int]]]:
    """Take all that waits; return the tickets and positions of each batch."""
    return [[(entry.ticket, entry.position) for entry in batch.entries] for batch in iter(line.take, None)]


def due_tokens(line: Line, *, at: float) -> int:
    line.pass_time(at)
    return sum(tokens for _, tokens, is_due in line.work() if is_due)


@given(lengths_and_anchor, st.integers(1, 600))
def test_a_window_holds_the_anchor_and_fits_the_budget_with_little_padding(
    given_lengths: tuple[list[int], int], budget_tokens: int
) -> None:
    lengths, anchor = given_lengths
    low, high = window(lengths, anchor, budget_tokens=budget_tokens)
    assert 0 <= low <= anchor < high <= len(lengths)

    def fits(low: int, high: int) -> bool:
        padded = lengths[high - 1] * (high - low)
        return padded <= budget_tokens and padded - sum(lengths[low:high]) <= MAX_PADDING * padded

    assert high - low == 1 or fits(low, high)
    for wider in ((low - 1, high), (low, high + 1)):
        assert wider[0] < 0 or wider[1] > len(lengths) or not fits(*wider), "this neighbour would fit"


def test_texts_of_the_nearest_lengths_join_the_batch_of_the_oldest() -> None:
    for lengths, anchor, expected in (
        ([100] * 9, 4, (2, 5)),  # 384 tokens hold three texts; texts before the anchor come first
        ([5, 100, 101, 300], 1, (1, 3)),
        ([700], 0, (0, 1)),  # longer than the budget: it runs alone instead of waiting for ever
    ):
        assert window(lengths, anchor, budget_tokens=384) == expected


def test_idle_workers_share_the_waiting_tokens() -> None:
    for waiting_tokens, num_idle, expected in ((200, 1, 200), (201, 2, 101), (10_000, 2, 384), (40, 2, 32)):
        assert share(waiting_tokens, num_idle, 384) == expected


@given(requests, st.data())
def test_every_text_runs_once_and_waiting_texts_are_counted(given_requests: Requests, data: st.DataObject) -> None:
    """A removed ticket never runs again, and all others do."""
    tickets = tickets_of(given_requests)
    line = line_of(*tickets)
    assert line.tokens == sum(sum(lengths) for lengths, _ in given_requests)
    batch = line.take()
    assert batch
    begun = {(entry.ticket, entry.position) for entry in batch.entries}
    gone = data.draw(st.none() | st.sampled_from(tickets))
    if gone:
        line.remove(gone)
        line.remove(gone)
    assert line.tokens == sum(entry.length for one in tickets for entry in one.entries if entry.shelf)
    order = [text for batch in batches_of(line) for text in batch]
    expected = {(one, entry.position) for one in tickets if one is not gone for entry in one.entries}
    assert len(order) == len(set(order))
    assert set(order) == expected - begun
    assert (line.tokens, line.num_texts) == (0, 0)


@given(requests)
def test_the_next_batch_always_includes_a_text_with_the_earliest_turn(given_requests: Requests) -> None:
    tickets = tickets_of(given_requests)
    line = line_of(*tickets)
    while any(map(waits, tickets)):
        first = min(turn_of(one) for one in tickets if waits(one))
        batch = line.take()
        assert batch
        assert first == min(turn_of(entry.ticket) for entry in batch.entries)


@given(st.integers(1, 512), st.integers(1, 20))
def test_a_long_text_waits_for_a_bounded_time_under_a_flood_of_short_ones(tokens: int, per_second: int) -> None:
    """Short texts keep arriving faster than they run; still the long text runs within a bound known beforehand."""
    long = ticket(tokens, arrived=0)
    line = line_of(long)
    now = 0.0
    while waits(long):
        for number in range(2 * per_second):
            line.add(ticket(16, arrived=now + number / (2 * per_second)))
        for _ in range(max(1, per_second // 16)):
            line.take()
        now += 1
        assert now <= 4 + tokens / 16


def test_texts_of_two_models_never_run_together() -> None:
    one, other = ticket(10, 10), ticket(10, 10, lane=Lane(LANE.model, "sentence_embedding"))
    assert batches_of(line_of(one, other)) == [[(one, 0), (one, 1)], [(other, 0), (other, 1)]]


def test_a_text_overtakes_a_large_request_just_before_it_but_not_two_seconds_later() -> None:
    large, small, late = ticket(*[60] * 300, arrived=0), ticket(20, arrived=0.5), ticket(20, arrived=2.01)
    batches = batches_of(line_of(late, large, small, batch_tokens=64))
    assert (batches[0], batches[-1]) == ([(small, 0)], [(late, 0)])
    first, beside, later = ticket(30, arrived=0.1), ticket(33, arrived=0.5), ticket(30, arrived=3)
    assert {*batches_of(line_of(later, beside, first))[0]} == {(first, 0), (beside, 0)}


def test_the_texts_of_a_bulk_request_have_consecutive_turns() -> None:
    assert turns_of(ticket(10, 30, 60, spread=10, arrived=5)) == [6, 9, 15]
    assert turns_of(ticket(10, 30, arrived=5)) == [5.04, 5.04]


def test_only_the_due_tokens_of_a_bulk_request_count() -> None:
    line = line_of(ticket(*[50] * 10, spread=10), batch_tokens=64)
    assert (line.tokens, due_tokens(line, at=0), len(line.bulk)) == (500, 0, 1)
    assert due_tokens(line, at=3) == 150
    for _ in range(4):
        line.take()
    assert (line.tokens, due_tokens(line, at=3), due_tokens(line, at=6)) == (300, 0, 100)  # it is ahead of its turns
    line.add(ticket(20, arrived=6))
    assert due_tokens(line, at=6) == 120


def test_bulk_texts_scheduled_for_later_do_not_join_a_batch_of_due_ones() -> None:
    large, small = ticket(*[50] * 6, spread=0.6), ticket(50, arrived=0.22)
    line = line_of(large, small, batch_tokens=500)
    line.pass_time(0.25)
    assert batches_of(line) == [[(small, 0), (large, 0), (large, 1)], [(large, place) for place in range(2, 6)]]


def test_the_line_keeps_no_reference_to_what_was_dropped_or_has_run() -> None:
    gone, run = (ticket(*[60] * 500, spread=500) for _ in range(2))
    line = line_of(gone, run, ticket(10))
    line.remove(gone)
    assert list(line.bulk) == [run]
    batches_of(line)
    assert (line.bulk, due_tokens(line, at=1000), line._shelves) == ({}, 0, {})
    line.add(ticket(500))
    for number in range(1000):
        left = ticket(20, arrived=number / 1000)
        line.add(left)
        line.remove(left)
    assert len(line._turns) <= 2 * line.num_texts + 64 + 1
    assert len(line._later) <= 2 * line.num_texts + 64
