"""Admission decides which requests may wait, and after how many seconds the others may try again."""

import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clozeline.inference.language import OpenEncoder
from clozeline.inference.open_model import Rows
from clozeline.inference.tokenization import TokenizedText
from clozeline.serving.admission import Admission, Asks, OverloadedError, Pace, Waiting, check_bulk, check_in_time
from tests.serving.conftest import Hosted

NOTHING_MEASURED = Pace(1)


def pace_of(tokens_per_second: int, num_workers: int = 1) -> Pace:
    pace = Pace(num_workers)
    pace.note(tokens_per_second, 1.0)
    return pace


THOUSAND = pace_of(1_000)


def due(tokens: int, pace: Pace = NOTHING_MEASURED) -> Waiting:
    seconds = pace.seconds_for(tokens)
    return Waiting(seconds, seconds, tokens)


def refusal(check: Callable[..., None], *given: object) -> tuple[str, int | None] | None:
    """Return the reason of a refusal and the seconds after which a retry makes sense."""
    try:
        check(*given)
    except OverloadedError as error:
        return error.reason, error.retry_after_seconds
    return None


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.integers(1, 100_000))
@example(limit=5, waiting=2, tokens=3)
def test_due_tokens_never_exceed_the_limit(limit: int, waiting: int, tokens: int) -> None:
    check = Admission(max_waiting_tokens=limit).check
    assert (refusal(check, due(waiting), Asks(tokens), NOTHING_MEASURED) is None) == (waiting + tokens <= limit)
    assert refusal(check, Waiting(seconds=20, promised=0.9), Asks(tokens), NOTHING_MEASURED) is None, "no work is due"


@given(st.integers(1, 50_000), st.integers(1, 50_000), st.integers(1, 10_000), st.sampled_from([1, 2, 30]))
def test_due_work_never_exceeds_the_wait_limit_or_the_deadline_of_the_request(
    waiting: int, tokens: int, per_second: int, patience: float
) -> None:
    pace = pace_of(per_second)
    admission = Admission(max_waiting_tokens=10**9, max_wait_seconds=2)
    refused = refusal(admission.check, due(waiting, pace), Asks(tokens, patience), pace)
    assert (refused is None) == (waiting / per_second + tokens / per_second <= min(2, patience))


def test_retry_after_is_the_time_until_there_is_room() -> None:
    pace = pace_of(100, num_workers=2)
    full, slow = Admission(1000, max_wait_seconds=60), Admission(10**9, max_wait_seconds=10)
    assert refusal(full.check, due(900, pace), Asks(400), pace) == ("queue_full", 2)  # 300 too many, at 200 a second
    assert refusal(slow.check, due(2900, pace), Asks(100), pace) == ("queue_slow", 5)


def test_a_request_above_half_the_queue_and_one_micro_batch_is_bulk() -> None:
    for max_waiting_tokens, asks, pace, spread_seconds in (
        (10_000, Asks(5_000, 30), NOTHING_MEASURED, 0),
        (10_000, Asks(5_000, 30), pace_of(999), 17.5),  # 5.005 s of the limit of 10 s
        (10_000, Asks(5_001, 4), NOTHING_MEASURED, 2),
        (5, Asks(384, 30), NOTHING_MEASURED, 0),
    ):
        admission = Admission(max_waiting_tokens, max_wait_seconds=10)
        assert admission.spread_seconds(asks, pace, 384) == spread_seconds


def test_a_refusal_for_a_missed_deadline_has_no_retry_after() -> None:
    for asks, spread_seconds, pace, expected in (
        (Asks(26_000, 30), 20, THOUSAND, ("never_in_time", None)),
        (Asks(20_000, 30), 20, THOUSAND, None),
        (Asks(1_001, 1), 0, THOUSAND, ("never_in_time", None)),
        (Asks(10**9, 1), 0, NOTHING_MEASURED, None),
    ):
        assert refusal(check_in_time, asks, spread_seconds, pace) == expected


def test_bulk_requests_are_never_promised_more_than_the_measured_throughput() -> None:
    large, short = (Asks(12_000, 30), 20), (Asks(6_000, 12), 6)
    for (asks, spread_seconds), waiting, retry_after_seconds in (
        (large, Waiting(9, promised=0.6), 9),  # more is promised than runs in a second
        (large, Waiting(9, promised=0.4), None),
        (short, Waiting(9, 8, 8_000), 2),  # the remaining time is too short
        (short, Waiting(9, 5, 5_000), None),
    ):
        refused = refusal(check_bulk, waiting, asks, spread_seconds, THOUSAND)
        assert refused == (("queue_slow", retry_after_seconds) if retry_after_seconds else None)


def test_a_request_that_would_miss_its_deadline_is_refused_at_once_without_retry_after(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = OpenEncoder.rows

    def slowly(self: OpenEncoder, texts: Sequence[TokenizedText], output: str) -> list[Rows]:
        time.sleep(0.005 * sum(map(len, texts)))
        return rows(self, texts, output)

    monkeypatch.setattr(OpenEncoder, "rows", slowly)
    texts = ["a " * 46] * 20  # 960 tokens: 4.8 s of work on any processor
    with hosted(admission=Admission(max_waiting_tokens=400), batch_tokens=96) as (client, _):
        client.post("/embed", json={"inputs": texts[:2]}).raise_for_status()  # measures the pace
        sent = time.monotonic()
        for path, key in (("/embed", "inputs"), ("/v1/embeddings", "input")):
            refused = client.post(path, json={"model": "encoder", key: texts}, headers={"x-timeout-ms": "4000"})
            assert refused.status_code == 413
            assert not {"retry-after", "x-should-retry"} & set(refused.headers)
        assert time.monotonic() - sent < 4
        assert 'clozeline_rejections_total{reason="never_in_time"} 2.0' in client.get("/metrics").text
        assert client.post("/embed", json={"inputs": texts[:5]}).status_code == 200
