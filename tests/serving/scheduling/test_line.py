"""The line chooses whose turn it is and which texts run along, and no text starves."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from clozeline.serving.queue import Lane, Line, Runnable, Ticket, turn_of, turns_of

Make = Callable[..., Ticket]
requests = st.lists(
    st.tuples(st.lists(st.integers(1, 512), min_size=1, max_size=6), st.floats(0, 5)), min_size=1, max_size=25
)


def taken(line: Line) -> list[tuple[Ticket, int]]:
    """Take all that waits; return each ticket and position in the order in which they run."""
    order: list[tuple[Ticket, int]] = []
    while batch := line.take():
        order += [(entry.ticket, entry.position) for entry in batch.entries]
    return order


@given(requests)
def test_every_text_runs_once_and_waiting_texts_are_counted(
    ticket: Make, given_requests: list[tuple[list[int], float]]
) -> None:
    line = Line()
    tickets = [ticket(*lengths, arrived=arrived) for lengths, arrived in given_requests]
    for one in tickets:
        line.add(one)
    assert line.tokens == sum(sum(lengths) for lengths, _ in given_requests)
    order = taken(line)
    assert len(order) == len(set(order)) == sum(len(one.entries) for one in tickets)
    assert (line.tokens, line.num_texts) == (0, 0)


@given(requests)
def test_the_next_batch_always_includes_a_text_with_the_earliest_turn(
    ticket: Make, given_requests: list[tuple[list[int], float]]
) -> None:
    line = Line()
    tickets = [ticket(*lengths, arrived=arrived) for lengths, arrived in given_requests]
    for one in tickets:
        line.add(one)
    while any(entry.waits for one in tickets for entry in one.entries):
        first = min(turn_of(one) for one in tickets if any(entry.waits for entry in one.entries))
        batch = line.take()
        assert batch
        assert first == min(turn_of(entry.ticket) for entry in batch.entries)


@given(requests, st.data())
def test_a_removed_ticket_never_runs_and_all_others_do(
    ticket: Make, given_requests: list[tuple[list[int], float]], data: st.DataObject
) -> None:
    line = Line()
    tickets = [ticket(*lengths, arrived=arrived) for lengths, arrived in given_requests]
    for one in tickets:
        line.add(one)
    batch = line.take()
    assert batch
    begun = {(entry.ticket, entry.position) for entry in batch.entries}
    gone = data.draw(st.sampled_from(tickets))
    line.remove(gone)
    line.remove(gone)
    assert line.tokens == sum(entry.length for one in tickets for entry in one.entries if entry.waits)
    expected = {(one, entry.position) for one in tickets if one is not gone for entry in one.entries}
    assert set(taken(line)) == expected - begun


@given(st.integers(1, 512), st.integers(1, 20))
def test_a_long_text_waits_for_a_bounded_time_under_a_flood_of_short_ones(
    ticket: Make, tokens: int, per_second: int
) -> None:
    """Short texts keep arriving faster than they run; still the long text runs within a bound known beforehand."""
    line = Line()
    long = ticket(tokens, arrived=0)
    line.add(long)
    now = 0.0
    while any(entry.waits for entry in long.entries):
        for number in range(2 * per_second):
            line.add(ticket(16, arrived=now + number / (2 * per_second)))
        for _ in range(max(1, per_second // 16)):
            line.take()
        now += 1
        assert now <= 4 + tokens / 16


@given(st.lists(st.integers(1, 128), min_size=1, max_size=20), st.integers(1, 128))
def test_an_admitted_text_runs_within_a_bound_however_many_follow(ticket: Make, others: list[int], tokens: int) -> None:
    """At most 1,000 tokens wait and 500 run per second, so each text has run about two seconds after its turn."""
    line = Line(batch_tokens=128)
    asked = ticket(tokens, arrived=0)
    line.add(asked)
    now, number = 0.0, 0
    while asked.entries[0].waits:
        while line.tokens + others[number % len(others)] <= 1000:
            line.add(ticket(others[number % len(others)], arrived=now))
            number += 1
        batch = line.take()
        assert batch
        now += max(batch.padded_tokens, 1) / 500
        assert now <= turn_of(asked) + 1000 / (0.9 * 500) + 128 / 500


def test_a_small_request_overtakes_a_large_one_that_arrived_just_before_it(ticket: Make) -> None:
    line = Line(batch_tokens=64)
    bulk, small = ticket(*[60] * 30, arrived=0), ticket(20, arrived=0.5)
    line.add(bulk)
    line.add(small)
    assert taken(line)[0] == (small, 0)


def test_a_text_that_arrives_two_seconds_later_does_not_overtake_a_large_request(ticket: Make) -> None:
    line = Line(batch_tokens=64)
    bulk, late = ticket(*[60] * 3000, arrived=0), ticket(20, arrived=2.01)
    line.add(late)
    line.add(bulk)
    assert taken(line)[-1] == (late, 0)


def bulk(ticket: Make, *lengths: int, spread: float, arrived: float = 0) -> Ticket:
    made = ticket(*lengths, arrived=arrived)
    made.spread_seconds = spread
    return made


def at_100_a_second(model: Runnable, tokens: float) -> float:
    return tokens / 100


def due_tokens(line: Line, *, at: float) -> int:
    line.pass_time(at)
    return line.due_tokens


def test_the_texts_of_a_bulk_request_have_consecutive_turns(ticket: Make) -> None:
    assert turns_of(bulk(ticket, 10, 30, 60, spread=10, arrived=5)) == [6, 9, 15]
    assert turns_of(ticket(10, 30, arrived=5)) == [5.04, 5.04]


def test_only_the_due_tokens_of_a_bulk_request_count(ticket: Make) -> None:
    line = Line(batch_tokens=64)
    line.add(bulk(ticket, *[50] * 10, spread=10))
    assert (line.tokens, due_tokens(line, at=0), line.promised(at_100_a_second)) == (500, 0, 0.5)
    assert due_tokens(line, at=3) == 150
    assert (line.seconds(at_100_a_second), line.due_seconds(at_100_a_second)) == (5, 1.5)
    for _ in range(4):
        line.take()
    assert (line.tokens, due_tokens(line, at=3), due_tokens(line, at=6)) == (300, 0, 100)  # it is ahead of its turns
    line.add(ticket(20, arrived=6))
    assert due_tokens(line, at=6) == 120


def test_small_requests_overtake_a_bulk_request_which_runs_if_nothing_else_waits(ticket: Make) -> None:
    line = Line(batch_tokens=64)
    large, small = bulk(ticket, *[60] * 10, spread=10), ticket(20, arrived=5.5)
    line.add(large)
    line.add(small)
    order = taken(line)
    assert order.index((small, 0)) == 5  # five texts are due by then
    assert len(order) == 11


def test_bulk_texts_scheduled_for_later_do_not_join_a_batch_of_due_ones(ticket: Make) -> None:
    line = Line(batch_tokens=500)
    large, small = bulk(ticket, *[50] * 6, spread=0.6), ticket(50, arrived=0.22)
    line.add(large)
    line.add(small)
    line.pass_time(0.25)
    batches = [line.take(), line.take()]
    assert [
        [(entry.ticket is large, entry.position) for entry in batch.entries] for batch in batches if batch is not None
    ] == [[(False, 0), (True, 0), (True, 1)], [(True, 2), (True, 3), (True, 4), (True, 5)]]


def test_a_dropped_or_finished_bulk_request_leaves_no_state(ticket: Make) -> None:
    line = Line()
    gone, run = bulk(ticket, *[60] * 500, spread=500), bulk(ticket, *[60] * 500, spread=500)
    line.add(gone)
    line.add(run)
    line.remove(gone)
    assert line.promised(at_100_a_second) == 0.6
    taken(line)
    assert (line.promised(at_100_a_second), due_tokens(line, at=0), due_tokens(line, at=1000)) == (0, 0, 0)
    assert line._shelves == {}
    line.add(ticket(5))
    line.take()
    assert len(line._later) + len(line._turns) <= 2 * (2 * line.num_texts + 64)


def test_a_text_that_arrived_seconds_later_does_not_join_the_batch_while_others_wait(ticket: Make) -> None:
    line = Line()
    first, beside, later = ticket(30, arrived=0.1), ticket(33, arrived=0.5), ticket(30, arrived=3)
    for one in (later, beside, first):
        line.add(one)
    batch = line.take()
    assert batch
    assert {entry.ticket for entry in batch.entries} == {first, beside}


def test_texts_of_two_models_never_run_together(ticket: Make) -> None:
    other = Lane(ticket(1).lane.model, "sentence_embedding")
    line = Line()
    line.add(ticket(10, 10))
    line.add(ticket(10, 10, lane=other))
    batches = [line.take(), line.take()]
    assert [len(batch.entries) for batch in batches if batch] == [2, 2]
    assert line.take() is None


def test_the_line_keeps_no_reference_to_a_model_without_waiting_work(ticket: Make) -> None:
    line = Line()
    line.add(ticket(10))
    line.take()
    assert line._shelves == {}


def test_the_line_forgets_texts_that_have_run(ticket: Make) -> None:
    line = Line()
    bulk = ticket(*[500] * 3, arrived=0)
    line.add(bulk)
    for number in range(2000):
        line.add(ticket(20, arrived=number / 1000))
        line.take()
    assert len(line._turns) <= 2 * line.num_texts + 64 + 1
