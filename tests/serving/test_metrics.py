"""Counts of /metrics are exact."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from clozeline.serving.limits import MAX_BODY_BYTES
from tests.serving.conftest import Hosted, connection, wait_until


def counted(client: httpx.Client) -> dict[str, float]:
    """Return each sample by `name{label=value,…}`, without buckets; parsing also checks the format of the page."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        f"{sample.name}{{{','.join(f'{key}={value}' for key, value in sorted(sample.labels.items()))}}}": sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_counts_are_exact_under_concurrent_requests_and_padding_is_below_a_tenth(hosted: Hosted) -> None:
    with hosted(num_workers=2) as (client, _), ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(client.post, "/embed", json={"inputs": ["the list", "a"]}) for _ in range(64)]
        tokens = sum(int(answer.result().headers["x-compute-tokens"]) for answer in answers)
        counts = counted(client)
        cards = client.get("/models").json()["models"]
        texts = ["a " * (1 + number * number % 61) for number in range(64)]
        for _ in range(4):
            assert client.post("/embed", json={"inputs": texts}).status_code == 200
        mixed = counted(client)
    padding = mixed["clozeline_padding_tokens_total{}"]
    assert 0 < padding < 0.1 * (padding + mixed["clozeline_batch_tokens_sum{}"])
    assert tokens == 64 * (4 + 3)
    for name, number in {
        "requests_total{route=/embed,status=200}": 64,
        "request_seconds_count{route=/embed}": 64,
        **{f"{phase}_seconds_count{{model=encoder}}": 64 for phase in ("tokenize", "queue", "inference")},
        "text_tokens_sum{model=encoder}": tokens,
        "tokens_total{model=encoder}": tokens,
        "batch_tokens_sum{}": tokens,
        "batch_texts_sum{}": 128,
        "queue_tokens{}": 0,
        "workers{}": 2,
    }.items():
        assert counts[f"clozeline_{name}"] == number, name
    for card in cards:
        labels = f"model={card['name']},precision={card['precision']},sha256={card['sha256']},version={card['version']}"
        assert counts[f"clozeline_model_info{{{labels}}}"] == 1


def test_unknown_tokens_and_the_confidence_of_all_but_raw_answers_are_counted(hosted: Hosted) -> None:
    asked = {"query": "open the list", "texts": ["a", "the file"]}
    with hosted(num_workers=2) as (client, _):
        client.post("/fill-mask", json={"inputs": "漢 [MASK] 字 [MASK] a"})
        labels = client.post("/classify", json={"inputs": "the list"}).json()
        ranks = client.post("/rerank", json=asked).json()
        client.post("/rerank", json=asked | {"raw_scores": True})
        client.post("/complete", json={"inputs": "a", "parameters": {"max_new_tokens": 3}})
        counts = counted(client)
    assert counts["clozeline_unknown_tokens_total{model=encoder}"] == 2
    assert counts["clozeline_tokens_total{model=encoder}"] == 7
    for model, number in (("encoder", 2), ("ranker", 2), ("writer", 3)):
        assert counts[f"clozeline_confidence_count{{model={model}}}"] == number
    assert counts["clozeline_confidence_sum{model=library}"] == pytest.approx(labels[0][0]["score"])
    assert counts["clozeline_confidence_sum{model=ranker}"] == pytest.approx(sum(rank["score"] for rank in ranks))


@pytest.mark.parametrize(
    ("path", "route"),
    [("/v2/models/secret-model/infer", "/v2/models/{model}/infer"), ("/secret-path", "(no route)")],
)
def test_requests_refused_before_routing_are_counted_under_their_route(hosted: Hosted, path: str, route: str) -> None:
    with hosted(num_workers=2) as (client, _):
        assert client.post(path, content=b" " * (MAX_BODY_BYTES + 1)).status_code == 413
        with connection(client) as leaving:
            leaving.sendall(f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 15\r\n\r\n{{".encode())
        left = f'clozeline_requests_total{{route="{route}",status="0"}} 1.0'
        wait_until(lambda: left in client.get("/metrics").text)
        text = client.get("/metrics").text
    assert f'clozeline_requests_total{{route="{route}",status="413"}} 1.0' in text
    assert "secret" not in text
