"""Answers of the models' routes over HTTP."""

import httpx
import numpy as np
import pytest

from clozeline.inference.language import OpenEncoder
from clozeline.serving.http.house_texts import FILLING
from clozeline.serving.models import Catalogue


def test_one_text_with_one_mask_gets_its_candidates_best_first(client: httpx.Client) -> None:
    answer = client.post("/fill-mask", json={"inputs": "the [MASK] of", "parameters": {"top_k": 3}})
    assert answer.status_code == 200
    candidates = answer.json()
    assert [set(candidate) for candidate in candidates] == [{"score", "token", "token_str", "sequence"}] * 3
    scores = [candidate["score"] for candidate in candidates]
    assert scores == sorted(scores, reverse=True)
    word = next(candidate for candidate in candidates if not candidate["token_str"].startswith("##"))
    assert word["sequence"] == f"the {word['token_str']} of"


def test_each_text_of_a_list_gets_a_list_and_each_of_its_several_masks_too(client: httpx.Client) -> None:
    alone = client.post("/fill-mask", json={"inputs": "a [MASK] b [MASK]"}).json()
    assert [len(mask) for mask in alone] == [5, 5]
    together = client.post("/fill-mask", json={"inputs": ["the [MASK]", "a [MASK] b [MASK]"]}).json()
    assert isinstance(together[0][0], dict)
    assert [[c["token"] for c in mask] for mask in together[1]] == [[c["token"] for c in mask] for mask in alone]
    assert isinstance(client.post("/fill-mask", json={"inputs": ["the [MASK]"]}).json()[0], list)


def test_probabilities_are_normalized_over_the_targets(client: httpx.Client) -> None:
    body = {"inputs": "the [MASK]", "parameters": {"targets": ["list", "file"]}}
    candidates = client.post("/fill-mask", json=body).json()
    assert {candidate["token_str"] for candidate in candidates} == {"list", "file"}
    assert sum(candidate["score"] for candidate in candidates) == pytest.approx(1)


def test_vectors_equal_those_of_the_encoder_in_text_order(client: httpx.Client, catalogue: Catalogue) -> None:
    texts = ["return the list", "a", "open the file of the list", "b"]
    served = catalogue.answering(FILLING).model
    assert isinstance(served, OpenEncoder)
    vectors = np.array(client.post("/embed", json={"inputs": texts}).json(), dtype=np.float32)
    # Other texts in the micro-batch change the last bits.
    np.testing.assert_allclose(vectors, served.embed(texts), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_one_text_gets_one_vector_in_a_list(client: httpx.Client) -> None:
    assert np.shape(client.post("/embed", json={"inputs": "a"}).json()) == (1, 8)


def test_labels_come_best_first_and_their_scores_add_up_to_1(client: httpx.Client) -> None:
    (scores,) = client.post("/classify", json={"inputs": "open the file"}).json()
    assert sum(score["score"] for score in scores) == pytest.approx(1)
    assert scores == sorted(scores, key=lambda score: -score["score"])
    best = client.post("/classify", json={"inputs": ["open the file"], "parameters": {"top_k": 1}}).json()
    assert best == [scores[:1]]


def test_selecting_labels_does_not_change_their_scores(client: httpx.Client) -> None:
    (scores,) = client.post("/classify", json={"inputs": "open the file"}).json()
    body = {"inputs": "open the file", "parameters": {"labels": ["numpy", "torch"]}}
    assert client.post("/classify", json=body).json() == [[s for s in scores if s["label"] != "python"]]


def test_a_long_text_is_truncated_on_request(client: httpx.Client) -> None:
    cut = client.post("/embed", json={"inputs": "a " * 100, "truncate": True}).json()
    assert cut == client.post("/embed", json={"inputs": "a " * 62}).json()


@pytest.mark.parametrize(
    ("route", "model"), [("/fill-mask", "encoder"), ("/embed", "encoder"), ("/classify", "library")]
)
def test_the_answer_names_its_model(client: httpx.Client, route: str, model: str) -> None:
    answer = client.post(route, json={"inputs": "[MASK]", "model": model})
    card = next(card for card in client.get("/models").json()["models"] if card["name"] == model)
    assert answer.headers["x-model"] == model
    assert answer.headers["x-model-version"] == card["version"]
    assert answer.headers["x-model-sha256"] == card["sha256"] == card["files"]["model.int8.onnx"]["sha256"]


def test_models_lists_routes_labels_and_provenance(client: httpx.Client) -> None:
    encoder, library, *_ = client.get("/models").json()["models"]
    assert encoder["routes"][:2] == ["/fill-mask", "/zero-shot"]
    assert library["routes"][:2] == ["/classify", "/predict"]
    assert {"/v1/embeddings", "/similarity"} <= set(encoder["routes"]) - set(library["routes"])
    assert library["labels"] == ["torch", "numpy", "python"]
    assert {"lock_sha256", "versions", "quantization", "source"} <= set(encoder)


ASKED: dict[str, object] = {
    "fill-mask": "the [MASK]",
    "classify": "open the file",
    "tag": "open the file",
    "answer": {"question": "open", "context": "the list of a file"},
    "pipeline/fill-mask": "the [MASK]",
    "pipeline/text-classification": "open the file",
    "pipeline/token-classification": "open the file",
    "pipeline/question-answering": {"question": "open", "context": "the list of a file"},
}
NULLS = [(route, None) for route in ASKED] + [
    (route, {"top_k": None}) for route in ASKED if route not in ("tag", "pipeline/token-classification")
]


@pytest.mark.parametrize(("route", "parameters"), NULLS)
def test_null_equals_a_missing_value(client: httpx.Client, route: str, parameters: object) -> None:
    body = {"inputs": ASKED[route]}
    given, none = (client.post(f"/{route}", json=one) for one in (body | {"parameters": parameters}, body))
    assert given.status_code == 200
    assert given.json() == none.json()
