"""Admission decides which requests may wait, and after how many seconds the others may try again."""

from hypothesis import given
from hypothesis import strategies as st

from clozeline.serving.queue import Admission, Asks, Pace, Waiting, never_in_time

NOTHING_MEASURED = Pace(1)
BATCH_TOKENS = 384


def pace_of(tokens_per_second: int, num_workers: int = 1) -> Pace:
    pace = Pace(num_workers)
    pace.note(tokens_per_second, 1.0)
    return pace


def due(tokens: int, pace: Pace = NOTHING_MEASURED) -> Waiting:
    seconds = pace.seconds_for(tokens)
    return Waiting(seconds, seconds, tokens)


def test_a_small_request_is_always_admitted_if_no_work_is_due() -> None:
    later = Waiting(seconds=20, due_seconds=0, due_tokens=0, promised=0.9)
    assert Admission(max_waiting_tokens=10).refusal(later, Asks(384), pace_of(1)) is None


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.integers(1, 100_000))
def test_due_tokens_never_exceed_the_limit(limit: int, waiting: int, tokens: int) -> None:
    refusal = Admission(max_waiting_tokens=limit).refusal(due(waiting), Asks(tokens), NOTHING_MEASURED)
    assert (refusal is None) == (waiting + tokens <= limit)


@given(st.integers(1, 50_000), st.integers(1, 50_000), st.integers(1, 10_000), st.sampled_from([1, 2, 30]))
def test_due_work_never_exceeds_the_wait_limit_or_the_deadline_of_the_request(
    waiting: int, tokens: int, per_second: int, patience: float
) -> None:
    admission = Admission(max_waiting_tokens=10**9, max_wait_seconds=2)
    pace = pace_of(per_second)
    refusal = admission.refusal(due(waiting, pace), Asks(tokens, patience), pace)
    assert (refusal is None) == (waiting / per_second + tokens / per_second <= min(2, patience))


def test_retry_after_is_the_time_until_there_is_room() -> None:
    full = Admission(max_waiting_tokens=1000, max_wait_seconds=60)
    refusal = full.refusal(due(900), Asks(400), pace_of(100, num_workers=2))
    assert refusal
    assert (refusal.reason, refusal.retry_after_seconds) == ("queue_full", 2)  # 300 tokens too many at 200 a second
    long = Admission(max_waiting_tokens=10**9, max_wait_seconds=10)
    pace = pace_of(100, num_workers=2)
    slow = long.refusal(due(2900, pace), Asks(100), pace)
    assert slow
    assert (slow.reason, slow.retry_after_seconds) == ("queue_slow", 5)


def test_a_request_above_half_the_queue_and_one_micro_batch_is_bulk() -> None:
    admission = Admission(max_waiting_tokens=10_000, max_wait_seconds=10)
    asks = Asks(5_000, patience_seconds=30)
    assert admission.spread_seconds(asks, NOTHING_MEASURED, BATCH_TOKENS) == 0
    assert admission.spread_seconds(asks, pace_of(999), BATCH_TOKENS) == 17.5  # 5.005 s of the limit of 10 s
    assert admission.spread_seconds(Asks(5_001, 30), NOTHING_MEASURED, BATCH_TOKENS) == 17.5
    assert admission.spread_seconds(Asks(5_001, 4), NOTHING_MEASURED, BATCH_TOKENS) == 2
    assert Admission(max_waiting_tokens=5).spread_seconds(Asks(384, 30), NOTHING_MEASURED, BATCH_TOKENS) == 0


def test_a_refusal_for_a_missed_deadline_has_no_retry_after() -> None:
    refusal = never_in_time(Asks(26_000, patience_seconds=30), 20, pace_of(1_000))
    assert refusal
    assert (refusal.reason, refusal.retry_after_seconds) == ("never_in_time", None)
    assert "26.0 s" in refusal.given
    assert "at most 20.0 s" in refusal.expected
    assert never_in_time(Asks(20_000, patience_seconds=30), 20, pace_of(1_000)) is None
    assert never_in_time(Asks(1_001, patience_seconds=1), 0, pace_of(1_000)) is not None
    assert never_in_time(Asks(10**9, patience_seconds=1), 0, NOTHING_MEASURED) is None
    assert never_in_time(Asks(1_001, patience_seconds=-1), 0, pace_of(1_000)) is None


def test_bulk_requests_are_never_promised_more_than_the_measured_throughput() -> None:
    asks, pace = Asks(12_000, 30), pace_of(1_000)
    alone = Admission().bulk_refusal(Waiting(0, 0, 0), asks, 20, pace)
    assert alone is None
    beside = Admission().bulk_refusal(Waiting(9, 0, 0, promised=0.6), asks, 20, pace)
    assert beside
    assert (beside.reason, beside.retry_after_seconds) == ("queue_slow", 9)
    assert Admission().bulk_refusal(Waiting(9, 0, 0, promised=0.4), asks, 20, pace) is None


def test_a_bulk_request_whose_remaining_time_is_too_short_gets_retry_after() -> None:
    asks, pace = Asks(6_000, 12), pace_of(1_000)
    refused = Admission().bulk_refusal(Waiting(9, 8, 8_000), asks, 6, pace)
    assert refused
    assert (refused.reason, refused.retry_after_seconds) == ("queue_slow", 2)
    assert Admission().bulk_refusal(Waiting(9, 5, 5_000), asks, 6, pace) is None


def test_the_measured_pace_follows_the_latest_batches() -> None:
    pace = Pace(1)
    assert pace.seconds_for(1000) == 0
    for _ in range(200):
        pace.note(100, 1.0)
    for _ in range(200):
        pace.note(100, 0.1)
    assert 0.9 < pace.seconds_for(1000) < 1.1
