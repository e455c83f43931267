"""Claim: under overload, accepted requests are answered in time; refused requests get a Retry-After."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from clozeline.inference.language import OpenEncoder
from clozeline.inference.open_model import Rows
from clozeline.inference.tokenization import TokenizedText
from clozeline.serving.admission import Admission
from tests.serving.conftest import Hosted, wait_until

TOKENS = 48
SECONDS_PER_TOKEN = 0.005
MAX_WAITING_TOKENS = 96
NUM_CLIENTS = 40
"""Together these clients would keep 1,920 tokens waiting, for 9.6 s."""
BOUND_SECONDS = 2 * SECONDS_PER_TOKEN * MAX_WAITING_TOKENS + 3
"""Time of the tokens that may wait and of as many that run, and 3 s for a machine that is busy otherwise."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the encoder take 5 ms per token on any processor."""
    rows = OpenEncoder.rows

    def slowly(self: OpenEncoder, texts: Sequence[TokenizedText], output: str) -> list[Rows]:
        time.sleep(SECONDS_PER_TOKEN * sum(map(len, texts)))
        return rows(self, texts, output)

    monkeypatch.setattr(OpenEncoder, "rows", slowly)


@pytest.mark.usefixtures("slow")
def test_accepted_requests_finish_within_the_bound_and_others_get_429_at_once(
    hosted: Hosted,
) -> None:
    body = {"inputs": "a " * (TOKENS - 2)}
    answers: list[tuple[int, float, httpx.Headers]] = []
    ends = threading.Event()

    def ask_on_and_on(url: httpx.URL) -> None:
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
            while not ends.is_set():
                sent = time.monotonic()
                answer = client.post("/embed", json=body)
                answers.append((answer.status_code, time.monotonic() - sent, answer.headers))
                ends.wait(0.02)  # refused clients that try again at once would only take time from the server

    admission = Admission(max_waiting_tokens=MAX_WAITING_TOKENS)
    with hosted(admission=admission) as (client, _), ThreadPoolExecutor(NUM_CLIENTS) as clients:
        for _ in range(NUM_CLIENTS):
            clients.submit(ask_on_and_on, client.base_url)
        assert not ends.wait(3)
        ends.set()
        clients.shutdown()
        counted = client.get("/metrics").text
    statuses = Counter(status for status, _, _ in answers)
    assert set(statuses) == {200, 429}
    assert statuses[200] >= 4
    assert max(seconds for status, seconds, _ in answers if status == 200) < BOUND_SECONDS
    refused = sorted((seconds, headers["retry-after"]) for status, seconds, headers in answers if status == 429)
    assert refused[len(refused) // 2][0] < 1
    assert all(retry_after.isdigit() and int(retry_after) >= 1 for _, retry_after in refused)
    assert f'clozeline_rejections_total{{reason="queue_full"}} {statuses[429]}.0' in counted


@pytest.fixture
def bulk_client(hosted: Hosted, slow: None) -> Iterator[httpx.Client]:
    """Client of a server where 400 tokens may wait, and 96 run together for half a second."""
    with hosted(admission=Admission(max_waiting_tokens=400), batch_tokens=96) as (client, _):
        yield client


BULK = {"inputs": ["a " * (TOKENS - 2)] * 20}
"""960 tokens: 4.8 s of work."""


def test_small_requests_are_answered_while_a_request_above_the_queue_limit_runs(bulk_client: httpx.Client) -> None:
    small: list[tuple[int, float]] = []
    with ThreadPoolExecutor(1) as clients:
        bulk = clients.submit(bulk_client.post, "/embed", json=BULK)
        wait_until(lambda: "clozeline_queue_tokens 0.0" not in bulk_client.get("/metrics").text)
        while not bulk.done():
            sent = time.monotonic()
            answer = bulk_client.post("/embed", json={"inputs": "a b c"})
            small.append((answer.status_code, time.monotonic() - sent))
        assert bulk.result().status_code == 200
    assert len(small) > 4
    assert {status for status, _ in small} == {200}
    assert max(seconds for _, seconds in small) < 2.5  # two micro-batches, and slack for a busy machine


@pytest.mark.parametrize(("path", "body"), [("/embed", BULK), ("/v1/embeddings", {"input": BULK["inputs"]})])
def test_a_request_that_would_miss_its_deadline_is_refused_at_once_without_retry_after(
    bulk_client: httpx.Client, path: str, body: dict[str, object]
) -> None:
    bulk_client.post("/embed", json={"inputs": BULK["inputs"][:2]}).raise_for_status()  # measures the pace
    sent = time.monotonic()
    refused = bulk_client.post(path, json={"model": "encoder"} | body, headers={"x-timeout-ms": "4000"})
    assert time.monotonic() - sent < 3
    assert refused.status_code == 413
    assert "the server cannot finish this request before its deadline" in refused.text
    assert not {"retry-after", "x-should-retry"} & set(refused.headers)
    assert 'clozeline_rejections_total{reason="never_in_time"} 1.0' in bulk_client.get("/metrics").text
    parted = bulk_client.post(path, json={"model": "encoder"} | body | {next(iter(body)): BULK["inputs"][:5]})
    assert parted.status_code == 200
