"""Every client reaches each of several models of a kind by a base URL that ends in `/models/NAME`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from openai import OpenAI
from starlette.types import ASGIApp

from clozeline.registry.sources import parse_sources
from clozeline.serving.access import ApiKeys
from clozeline.serving.loading import open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.make.packages import TOPICS, write_embedder
from tests.serving.conftest import run_app
from tests.serving.test_openapi import EXAMPLES, asked

Serving = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]
LIBRARIES = {"torch", "numpy", "python"}


@pytest.fixture(scope="module")
def twice(dist: Path, heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """Catalogue with two models of each kind that text-embeddings-inference serves."""
    embedder = tmp_path_factory.mktemp("second") / "embedder"
    write_embedder(embedder)
    places = [dist / "encoder", embedder, dist / "library", heads / "topics", heads / "ranker"]
    sources = parse_sources([*map(str, places), f"ranker-2={heads / 'ranker'}"])
    return Catalogue([open_source(source, "int8") for source in sources])


@pytest.fixture(scope="module")
def several(twice: Catalogue) -> Iterator[httpx.Client]:
    service = Service(Capacity(num_workers=1))
    service.open(twice)
    with run_app(create_app(service)) as client:
        yield client


@pytest.mark.parametrize(
    ("model", "path", "body"),
    [
        ("embedder", "/embed", {"inputs": "the list"}),
        ("embedder", "/similarity", {"inputs": {"source_sentence": "the list", "sentences": ["a"]}}),
        ("embedder", "/tokenize", {"inputs": "the list"}),
        ("embedder", "/v1/embeddings", {"model": "embedder", "input": "the list"}),
        ("topics", "/predict", {"inputs": "open the file"}),
        ("topics", "/classify", {"inputs": "open the file"}),
        ("topics", "/pipeline/text-classification", {"inputs": "open the file"}),
        ("topics", "/invocations", {"inputs": ["open the file"]}),
        ("ranker-2", "/rerank", {"query": "open", "texts": ["the file"]}),
        ("ranker-2", "/predict", {"inputs": ["open", "the file"]}),
    ],
)
def test_the_model_named_in_the_path_answers(several: httpx.Client, model: str, path: str, body: object) -> None:
    answer = several.post(f"/models/{model}{path}", json=body)
    assert (answer.status_code, answer.headers.get("x-model")) == (200, model), answer.text
    assert several.post(f"/models/nobody{path}", json=body).status_code in {404, 400, 422}


def test_clients_that_send_no_model_name_reach_the_model_in_the_path(several: httpx.Client) -> None:
    url = f"{several.base_url}/models/topics"
    labels = InferenceClient(f"{url}/pipeline/text-classification").text_classification("open the file")
    assert {label.label for label in labels} == set(TOPICS)
    first = InferenceClient(f"{several.base_url}/pipeline/text-classification").text_classification("open the file")
    assert {label.label for label in first} == LIBRARIES
    with OpenAI(base_url=f"{several.base_url}/models/embedder/v1", api_key="none", max_retries=0) as sdk:
        answer = sdk.embeddings.create(model="embedder", input="the list")
        assert answer.model == "embedder"
        assert "embedder" in [model.id for model in sdk.models.list()]
    (vector,) = several.post("/embed", json={"inputs": "the list", "model": "embedder"}).json()
    np.testing.assert_allclose(answer.data[0].embedding, vector, atol=1e-6)


def test_a_base_url_with_a_model_name_has_the_other_routes_too(several: httpx.Client) -> None:
    assert several.get("/models/topics/info").json()["model_id"] == "topics"
    for path in ("/health", "/metrics", "/v1/models", "/models"):
        assert several.get(f"/models/topics{path}").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "keys", "served"),
    [
        ("/predict", {"inputs": "a"}, {"error", "error_type"}, "library, topics, ranker"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a"]}}, {"error", "error_type"}, "encoder"),
        ("/pipeline/fill-mask", {"inputs": "a [MASK]"}, {"error", "error_type"}, "encoder"),
        ("/v1/embeddings", {"model": "nobody", "input": "a"}, {"error"}, "encoder, embedder"),
        ("/invocations", {"inputs": ["a"]}, {"error_code", "message"}, "encoder, embedder"),
        ("/fill-mask", {"inputs": "a [MASK]"}, {"error"}, "encoder"),
    ],
)
def test_an_unknown_model_gets_a_404_with_the_served_names_in_the_format_of_the_protocol(
    several: httpx.Client, path: str, body: object, keys: set[str], served: str
) -> None:
    answer = several.post(f"/models/nobody{path}", json=body)
    assert (answer.status_code, set(answer.json())) == (404, keys)
    assert f"one of: {served}" in answer.text


def test_contradicting_model_names_in_path_and_body_are_refused(several: httpx.Client) -> None:
    refused = several.post("/models/topics/classify", json={"inputs": "a", "model": "library"})
    assert refused.status_code == 422
    assert refused.json()["error"]["given"] == "/models/topics and library"


@pytest.mark.parametrize("path", ["/models/encoder", "/models/encoder/", "/models//embed", "/models/encoder/nothing"])
def test_an_unknown_route_under_a_model_name_is_reported_as_requested(several: httpx.Client, path: str) -> None:
    answer = several.post(path, json={"inputs": "a"})
    assert answer.status_code == 404
    assert answer.json()["error"]["given"] == f"POST {path}"


def test_metrics_and_log_have_the_route_without_the_model_name(
    several: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="clozeline.serving")
    for name in ("encoder", "nobody-1", "nobody-2"):
        several.post(f"/models/{name}/embed", json={"inputs": "a"})
    assert "POST /embed 200" in caplog.text
    assert "nobody" not in caplog.text + several.get("/metrics").text


def test_routes_under_a_model_name_require_a_key(serving: Serving, twice: Catalogue) -> None:
    service = Service(Capacity(num_workers=1))
    service.open(twice)
    with serving(create_app(service, ApiKeys.of(["a-key-of-some-length"]))) as client:
        refused = client.post("/models/topics/predict", json={"inputs": "a"})
        assert (refused.status_code, set(refused.json())) == (401, {"error", "error_type"})
        assert client.get("/models/topics/health").status_code == 200


def test_cached_answers_are_separate_for_each_model(serving: Serving, twice: Catalogue) -> None:
    service = Service(Capacity(num_workers=1, cache_bytes=100_000))
    service.open(twice)
    body = {"inputs": "open the file"}
    with serving(create_app(service)) as client:
        answers = [client.post(f"{prefix}/predict", json=body) for prefix in ("", "/models/topics", "/models/topics")]
    assert [answer.headers["x-model"] for answer in answers] == ["library", "topics", "topics"]
    assert [answer.headers.get("x-cache") for answer in answers] == [None, None, "hit"]


@pytest.mark.parametrize("path", sorted({path for path, _, _ in EXAMPLES}))
def test_no_route_answers_with_a_model_other_than_the_named_one(several: httpx.Client, path: str) -> None:
    """The paths come from the document, so that routes added later are tested too."""
    bodies = [body for of_path, _, body in EXAMPLES if of_path == path]
    answers = [several.post(f"/models/nobody{asked(several, path)}", json=body) for body in bodies]
    assert {answer.status_code for answer in answers} <= {404, 422, 400}
