"""Who may wait, and when the others are told to come back."""

from hypothesis import given
from hypothesis import strategies as st

from clozeline.serving.scheduling.admission import Admission
from clozeline.serving.scheduling.pace import Pace

NOTHING_MEASURED = Pace(1)


def pace_of(tokens_per_second: int, num_workers: int = 1) -> Pace:
    pace = Pace(num_workers)
    pace.note(tokens_per_second, 1.0)
    return pace


def test_where_nothing_waits_any_request_may() -> None:
    assert Admission(max_waiting_tokens=10).refusal(0, 100_000, pace_of(1)) is None


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.integers(1, 100_000))
def test_no_more_than_the_limit_ever_waits(limit: int, waiting: int, tokens: int) -> None:
    refusal = Admission(max_waiting_tokens=limit).refusal(waiting, tokens, NOTHING_MEASURED)
    assert (refusal is None) == (waiting + tokens <= limit)


@given(st.integers(1, 50_000), st.integers(1, 50_000), st.integers(1, 10_000))
def test_no_more_seconds_of_work_than_the_limit_ever_wait(waiting: int, tokens: int, per_second: int) -> None:
    admission = Admission(max_waiting_tokens=10**9, max_wait_seconds=2)
    refusal = admission.refusal(waiting, tokens, pace_of(per_second))
    assert (refusal is None) == ((waiting + tokens) / per_second <= 2)


def test_who_is_refused_may_come_back_when_there_is_room() -> None:
    full = Admission(max_waiting_tokens=1000, max_wait_seconds=60)
    refusal = full.refusal(900, 400, pace_of(100, num_workers=2))
    assert refusal
    assert (refusal.reason, refusal.retry_after_seconds) == ("queue_full", 2)  # 300 tokens too many at 200 a second
    slow = Admission(max_waiting_tokens=10**9, max_wait_seconds=10).refusal(2900, 100, pace_of(100, num_workers=2))
    assert slow
    assert (slow.reason, slow.retry_after_seconds) == ("queue_slow", 5)


def test_a_pace_follows_what_was_measured_last() -> None:
    pace = Pace(1)
    assert pace.seconds_for(1000) == 0
    for _ in range(200):
        pace.note(100, 1.0)
    for _ in range(200):
        pace.note(100, 0.1)
    assert 0.9 < pace.seconds_for(1000) < 1.1
