"""Counts of /metrics are exact."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from clozeline.serving.access import ApiKeys
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


def test_counts_are_exact_under_concurrent_requests(hosted: Hosted) -> None:
    with hosted(num_workers=2) as (client, _), ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(client.post, "/embed", json={"inputs": ["the list", "a"]}) for _ in range(64)]
        tokens = sum(int(answer.result().headers["x-compute-tokens"]) for answer in answers)
        counts = counted(client)
    assert tokens == 64 * (4 + 3)
    assert counts["clozeline_requests_total{route=/embed,status=200}"] == 64
    assert counts["clozeline_request_seconds_count{route=/embed}"] == 64
    for name in ("tokenize", "queue", "inference"):
        assert counts[f"clozeline_{name}_seconds_count{{model=encoder}}"] == 64
    assert (
        counts["clozeline_text_tokens_sum{model=encoder}"] == counts["clozeline_tokens_total{model=encoder}"] == tokens
    )
    assert counts["clozeline_batch_tokens_sum{}"] == tokens
    assert counts["clozeline_batch_texts_sum{}"] == 128
    assert counts["clozeline_queue_tokens{}"] == 0
    assert counts["clozeline_workers{}"] == 2


def test_mixed_lengths_run_with_less_than_a_tenth_of_padding(hosted: Hosted) -> None:
    with hosted(num_workers=2) as (client, _):
        for _ in range(4):
            texts = ["a " * (1 + number * number % 61) for number in range(64)]
            assert client.post("/embed", json={"inputs": texts}).status_code == 200
        counts = counted(client)
    padding = counts["clozeline_padding_tokens_total{}"]
    assert 0 < padding < 0.1 * (padding + counts["clozeline_batch_tokens_sum{}"])


def test_unknown_tokens_and_confidence_are_counted(hosted: Hosted) -> None:
    with hosted(num_workers=2) as (client, _):
        client.post("/fill-mask", json={"inputs": "漢 [MASK] 字 [MASK] a"})
        labels = client.post("/classify", json={"inputs": "the list"}).json()
        counts = counted(client)
    assert counts["clozeline_unknown_tokens_total{model=encoder}"] == 2
    assert counts["clozeline_tokens_total{model=encoder}"] == 7
    assert counts["clozeline_confidence_count{model=encoder}"] == 2
    assert counts["clozeline_confidence_sum{model=library}"] == pytest.approx(labels[0][0]["score"])


def test_reranked_texts_count_as_answers_but_raw_logits_do_not(hosted: Hosted) -> None:
    asked = {"query": "open the list", "texts": ["a", "the file"]}
    with hosted(num_workers=2) as (client, _):
        ranks = client.post("/rerank", json=asked).json()
        client.post("/rerank", json=asked | {"raw_scores": True})
        counts = counted(client)
    assert counts["clozeline_confidence_count{model=ranker}"] == 2
    assert counts["clozeline_confidence_sum{model=ranker}"] == pytest.approx(sum(rank["score"] for rank in ranks))


def test_the_metrics_name_the_served_version(hosted: Hosted) -> None:
    with hosted(num_workers=2) as (client, _):
        counts = counted(client)
        cards = client.get("/models").json()["models"]
    for card in cards:
        labels = ",".join(f"{key}={card[name]}" for key, name in LABELS)
        assert counts[f"clozeline_model_info{{{labels}}}"] == 1


LABELS = (("model", "name"), ("precision", "precision"), ("sha256", "sha256"), ("version", "version"))


def test_unknown_paths_are_counted_without_their_text(
    hosted: Hosted,
) -> None:
    with hosted(num_workers=2) as (client, _):
        client.get("/secret-path")
        text = client.get("/metrics").text
    assert 'clozeline_requests_total{route="(no route)",status="404"} 1.0' in text
    assert "secret-path" not in text


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/embed", "/embed"),
        ("/v2/models/secret-model/infer", "/v2/models/{model}/infer"),
        ("/", "/"),
        ("/openapi.json", "/openapi.json"),
        ("/secret-path", "(no route)"),
    ],
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


def test_a_401_is_counted_under_the_requested_route(hosted: Hosted) -> None:
    with hosted(keys=ApiKeys.of(["a-key-of-some-length"])) as (client, _):
        for method, path in (("POST", "/embed"), ("GET", "/v1/models/secret"), ("GET", "/secret")):
            assert client.request(method, path).status_code == 401
        text = client.get("/metrics", headers={"x-api-key": "a-key-of-some-length"}).text
    for route in ("/embed", "/v1/models/{model}", "(no route)"):
        assert f'clozeline_requests_total{{route="{route}",status="401"}} 1.0' in text
    assert "secret" not in text
