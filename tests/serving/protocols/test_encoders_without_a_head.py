"""An encoder without a head answers embedding requests of every protocol if no other model embeds."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from mlflow.pyfunc.scoring_server.client import ScoringServerClient
from openai import NotFoundError, OpenAI
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from clozeline.inference.language import OpenEncoder
from clozeline.registry.sources import parse_sources
from clozeline.serving.http.endpoint import DIALECTS
from clozeline.serving.http.house_texts import FILLING
from clozeline.serving.loading import open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.make.packages import HIDDEN_SIZE, write_classifier, write_embedder
from tests.serving.conftest import run_app

TEXTS = ["return the [MASK] of the list", "open the file"]


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Client of a server in which only `docsearch` embeds."""
    folder = tmp_path_factory.mktemp("headless")
    write_embedder(folder / "docsearch")
    write_classifier(folder / "library")
    service = Service(Capacity(num_workers=1))
    sources = parse_sources([str(folder / "docsearch"), str(folder / "library")])
    service.open(Catalogue([open_source(source, "int8") for source in sources]))
    with run_app(create_app(service)) as client:
        yield client


@pytest.fixture(scope="module")
def expected_TH(client: httpx.Client, catalogue: Catalogue) -> np.ndarray:
    """Embeddings of TEXTS by the encoder with a head, whose other weights are the same."""
    return catalogue.answering(FILLING).model.embed(TEXTS)


def test_its_card_lists_embedding_routes_and_no_fill_mask_route(headless: httpx.Client, catalogue: Catalogue) -> None:
    card = headless.get("/models").json()["models"][0]
    assert (card["name"], card["task"]) == ("docsearch", "feature-extraction")
    with_a_head = {one.path for one in DIALECTS.asking(catalogue.answering(FILLING))}
    not_answered = with_a_head - set(card["routes"])
    assert {route for route in not_answered if "zero-shot" not in route} == {"/fill-mask", "/pipeline/fill-mask"}
    assert not any("zero-shot" in route for route in card["routes"])


def test_own_routes_and_text_embeddings_inference_give_embeddings(
    headless: httpx.Client, expected_TH: np.ndarray
) -> None:
    np.testing.assert_allclose(headless.post("/embed", json={"inputs": TEXTS}).json(), expected_TH, atol=1e-6)
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}}
    np.testing.assert_allclose(headless.post("/similarity", json=body).json(), expected_TH @ expected_TH[0], atol=1e-6)
    info = headless.get("/info").json()
    assert (info["model_id"], info["model_type"]) == ("docsearch", {"embedding": {"pooling": "mean"}})
    assert len(headless.post("/tokenize", json={"inputs": TEXTS}).json()) == 2


@pytest.mark.parametrize("path", ["/embed", "/pipeline/feature-extraction"])
def test_at_the_level_of_tokens_each_token_gets_a_vector(
    headless: httpx.Client, expected_TH: np.ndarray, path: str
) -> None:
    hidden_TLH = headless.post(f"{path}?level=tokens", json={"inputs": TEXTS}).raise_for_status().json()
    num_tokens = [len(tokens) for tokens in headless.post("/tokenize", json={"inputs": TEXTS}).json()]
    assert [len(hidden_LH) for hidden_LH in hidden_TLH] == num_tokens
    for hidden_LH, expected_H in zip(hidden_TLH, expected_TH, strict=True):
        mean_H = np.mean(hidden_LH, axis=0)
        np.testing.assert_allclose(mean_H / np.linalg.norm(mean_H), expected_H, atol=1e-5)


@pytest.mark.parametrize(("query", "more"), [("level=words", {}), ("level=tokens", {"dimensions": 2})])
def test_a_level_that_cannot_be_given_is_refused(headless: httpx.Client, query: str, more: dict[str, int]) -> None:
    answer = headless.post(f"/embed?{query}", json={"inputs": TEXTS, **more})
    assert answer.status_code == 422
    assert "level" in answer.json()["error"]


def test_openai_gives_embeddings(headless: httpx.Client, expected_TH: np.ndarray) -> None:
    with OpenAI(base_url=f"{headless.base_url}/v1", api_key="none is asked for", max_retries=0) as sdk:
        answer = sdk.embeddings.create(model="docsearch", input=TEXTS)
        np.testing.assert_allclose([one.embedding for one in answer.data], expected_TH, atol=1e-6)
        with pytest.raises(NotFoundError, match="docsearch"):
            sdk.embeddings.create(model="library", input=TEXTS)


def test_hugging_face_pipelines_give_embeddings_and_refuse_fill_mask(
    headless: httpx.Client, expected_TH: np.ndarray
) -> None:
    def asking(task: str) -> InferenceClient:
        return InferenceClient(model=str(headless.base_url.join(f"/pipeline/{task}")))

    np.testing.assert_allclose(asking("feature-extraction").feature_extraction(TEXTS), expected_TH, atol=1e-6)
    cosines = asking("sentence-similarity").sentence_similarity(TEXTS[0], other_sentences=TEXTS)
    np.testing.assert_allclose(cosines, expected_TH @ expected_TH[0], atol=1e-6)
    with pytest.raises(OSError, match="no served model answers /pipeline/fill-mask"):
        asking("fill-mask").fill_mask(TEXTS[0])


def test_the_open_inference_protocol_gives_embeddings(headless: httpx.Client, expected_TH: np.ndarray) -> None:
    tensor = InferInput("text", [len(TEXTS)], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in TEXTS], dtype=object))
    with InferenceServerClient(f"{headless.base_url.host}:{headless.base_url.port}") as triton:
        outputs = triton.get_model_metadata("docsearch")["outputs"]
        assert outputs == [{"name": "embedding", "datatype": "FP32", "shape": [-1, HIDDEN_SIZE]}]
        answer = triton.infer("docsearch", [tensor])
        np.testing.assert_allclose(answer.as_numpy("embedding"), expected_TH, atol=1e-6)
        with pytest.raises(InferenceServerException, match="one of: embedding"):
            triton.infer("docsearch", [tensor], outputs=[InferRequestedOutput("token")])


def test_mlflow_gives_embeddings_without_a_masks_field(headless: httpx.Client, expected_TH: np.ndarray) -> None:
    scoring = ScoringServerClient(headless.base_url.host, headless.base_url.port)
    records = scoring.invoke(TEXTS, params={"model": "docsearch"})["predictions"]
    assert [set(record) for record in records] == [{"embedding"}] * 2
    np.testing.assert_allclose([record["embedding"] for record in records], expected_TH, atol=1e-6)


def test_an_encoder_without_a_head_refuses_fill_mask(headless: httpx.Client, tmp_path: Path) -> None:
    refused = headless.post("/fill-mask", json={"inputs": TEXTS[0], "model": "docsearch"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "no_such_model")
    write_embedder(tmp_path / "docsearch")
    served = open_source(parse_sources([str(tmp_path / "docsearch")])[0], "int8")
    assert not isinstance(served.model, OpenEncoder)
