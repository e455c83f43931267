"""/fill-mask, /embed, /classify and /complete answer as the library does; an encoder without a head answers embedding
requests of every protocol if no other model embeds."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from clozeline.inference.completer import Completer
from clozeline.serving.admission import Admission
from clozeline.serving.http.endpoint import DIALECTS
from clozeline.serving.http.house_texts import COMPLETING, FILLING
from clozeline.serving.models import Catalogue
from tests.make.apps import opened, running, service_of
from tests.make.packages import HIDDEN_SIZE, write_classifier, write_embedder
from tests.serving.conftest import wait_until


def test_one_text_with_one_mask_gets_its_candidates_best_first(client: httpx.Client) -> None:
    candidates = client.post("/fill-mask", json={"inputs": "the [MASK] of", "parameters": {"top_k": 3}}).json()
    assert [set(candidate) for candidate in candidates] == [{"score", "token", "token_str", "sequence"}] * 3
    scores = [candidate["score"] for candidate in candidates]
    assert scores == sorted(scores, reverse=True)
    word = next(candidate for candidate in candidates if not candidate["token_str"].startswith("##"))
    assert word["sequence"] == f"the {word['token_str']} of"
    body = {"inputs": "the [MASK]", "parameters": {"targets": ["list", "file"]}}
    candidates = client.post("/fill-mask", json=body).json()
    assert {candidate["token_str"] for candidate in candidates} == {"list", "file"}
    assert sum(candidate["score"] for candidate in candidates) == pytest.approx(1)


def test_each_text_of_a_list_gets_a_list_and_each_of_its_several_masks_too(client: httpx.Client) -> None:
    alone = client.post("/fill-mask", json={"inputs": "a [MASK] b [MASK]"}).json()
    assert [len(mask) for mask in alone] == [5, 5]
    one, two = client.post("/fill-mask", json={"inputs": ["the [MASK]", "a [MASK] b [MASK]"]}).json()
    assert isinstance(one[0], dict)
    assert [[c["token"] for c in mask] for mask in two] == [[c["token"] for c in mask] for mask in alone]
    assert isinstance(client.post("/fill-mask", json={"inputs": ["the [MASK]"]}).json()[0], list)


def test_vectors_equal_those_of_the_encoder_in_text_order(client: httpx.Client, catalogue: Catalogue) -> None:
    texts = ["return the list", "a", "open the file of the list", "b"]
    vectors = np.array(client.post("/embed", json={"inputs": texts}).json(), dtype=np.float32)
    # Other texts in the micro-batch change the last bits.
    np.testing.assert_allclose(vectors, catalogue.answering(FILLING).model.embed(texts), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    cut, short = (
        client.post("/embed", json={"inputs": "a " * number, "truncate": True}).json() for number in (100, 62)
    )
    assert np.shape(short) == (1, HIDDEN_SIZE)
    assert cut == short


def test_labels_come_best_first_with_scores_among_all_labels(client: httpx.Client) -> None:
    (scores,) = client.post("/classify", json={"inputs": "open the file"}).json()
    assert sum(score["score"] for score in scores) == pytest.approx(1)
    assert scores == sorted(scores, key=lambda score: -score["score"])
    best = client.post("/classify", json={"inputs": ["open the file"], "parameters": {"top_k": 1}}).json()
    assert best == [scores[:1]]
    body = {"inputs": "open the file", "parameters": {"labels": ["numpy", "torch"]}}
    assert client.post("/classify", json=body).json() == [[s for s in scores if s["label"] != "python"]]


def test_the_answer_names_its_model_and_the_card_lists_routes_labels_and_provenance(client: httpx.Client) -> None:
    encoder, library, *_ = client.get("/models").json()["models"]
    headers = client.post("/classify", json={"inputs": "a"}).headers
    assert (headers["x-model"], headers["x-model-version"]) == ("library", library["version"])
    assert headers["x-model-sha256"] == library["sha256"] == library["files"]["model.int8.onnx"]["sha256"]
    assert {"/v1/embeddings", "/similarity"} <= set(encoder["routes"]) - set(library["routes"])
    assert library["labels"] == ["torch", "numpy", "python"]
    assert {"lock_sha256", "versions", "quantization", "source"} <= set(encoder)


TEXTS = ["return the list", "open the file of a", "a"]


@pytest.fixture(scope="module")
def completer(catalogue: Catalogue) -> Completer:
    return catalogue.answering(COMPLETING).model


def test_the_route_completes_texts_as_the_library_does(client: httpx.Client, completer: Completer) -> None:
    expected = completer.complete(TEXTS)
    answer = client.post("/complete", json={"inputs": TEXTS})
    assert [(one["generated_text"], one["finish_reason"], one["num_tokens"]) for one in answer.json()] == [
        (one.text, one.finish_reason, len(one.tokens)) for one in expected
    ]
    assert answer.headers["x-model"] == "writer"
    assert client.post("/complete", json={"inputs": TEXTS[0]}).json()["generated_text"] == expected[0].text
    four = client.post("/complete", json={"inputs": "return the list", "parameters": {"max_new_tokens": 4}})
    assert four.headers["x-compute-tokens"] == str(4 + 5 + 6 + 7)


def test_sampling_parameters_behave_as_in_hugging_face(client: httpx.Client) -> None:
    def said(**parameters: object) -> str:
        body = {"inputs": "return", "parameters": {"max_new_tokens": 12, **parameters}}
        return str(client.post("/complete", json=body).json()["generated_text"])

    greedy = said()
    assert said(do_sample=False, temperature=1.0, seed=1) == greedy
    assert said(do_sample=True, seed=1) == said(temperature=1.0, seed=1) != greedy
    assert said(return_full_text=True) == f"return{greedy}"
    assert said(stop=[greedy[2:4]]) == greedy[: greedy.index(greedy[2:4])]


def test_an_unusable_parameter_is_named(client: httpx.Client) -> None:
    unusable = {"max_new_tokens": 1025, "temperature": -1, "top_p": 0, "seed": -1, "stop": ["a"] * 5, "num_beams": 4}
    for name, value in unusable.items():
        answer = client.post("/complete", json={"inputs": "a", "parameters": {name: value}})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, f"parameters.{name}")


def test_a_long_text_is_refused_or_cut_at_the_start_on_request(client: httpx.Client) -> None:
    body = {"inputs": ["a", "a " * 100], "parameters": {"max_new_tokens": 2}}
    refused, cut = (client.post("/complete", json=body | {"truncate": truncate}) for truncate in (False, True))
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "inputs[1]")
    assert [one["num_tokens"] for one in cut.json()] == [2, 2]


def test_a_causal_model_refuses_fill_mask(client: httpx.Client) -> None:
    assert client.post("/models/writer/fill-mask", json={"inputs": "the [MASK]"}).status_code == 404
    (routes,) = (card["routes"] for card in client.get("/models").json()["models"] if card["name"] == "writer")
    assert {"/fill-mask", "/zero-shot", "/pipeline/fill-mask"}.isdisjoint(routes)
    assert {"/complete", "/v1/completions", "/pipeline/text-generation", "/embed"} <= set(routes)


def test_a_started_completion_is_not_refused_between_steps(catalogue: Catalogue, held: threading.Event) -> None:
    """The line is as full as it may be when the second token is asked for."""
    service = service_of(catalogue, admission=Admission(max_waiting_tokens=4))
    with running(service) as client, ThreadPoolExecutor(3) as clients:
        begun = clients.submit(client.post, "/complete", json={"inputs": "a b c"})
        wait_until(lambda: service.workers.num_running == 1)
        waiting = clients.submit(client.post, "/complete", json={"inputs": "a b c"})
        wait_until(lambda: service.scheduler.waiting_tokens == 4)
        assert client.post("/complete", json={"inputs": "a"}).status_code == 429
        held.set()
        assert [answer.result().status_code for answer in (begun, waiting)] == [200, 200]


# Texts for an encoder without a head.
BARE = ["return the [MASK] of the list", "open the file"]


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Client of a server in which only `docsearch` embeds."""
    folder = tmp_path_factory.mktemp("headless")
    write_embedder(folder / "docsearch")
    write_classifier(folder / "library")
    with running(opened(folder / "docsearch", folder / "library")) as client:
        yield client


@pytest.fixture(scope="module")
def expected_TH(catalogue: Catalogue) -> np.ndarray:
    """Embeddings of BARE by the encoder with a head, whose other weights are the same."""
    return catalogue.answering(FILLING).model.embed(BARE)


def test_its_card_lists_embedding_routes_and_no_fill_mask_route(headless: httpx.Client, catalogue: Catalogue) -> None:
    card = headless.get("/models").json()["models"][0]
    assert (card["name"], card["task"]) == ("docsearch", "feature-extraction")
    missing = {one.path for one in DIALECTS.asking(catalogue.answering(FILLING))} - set(card["routes"])
    assert {route for route in missing if "zero-shot" not in route} == {"/fill-mask", "/pipeline/fill-mask"}
    assert headless.post("/fill-mask", json={"inputs": BARE[0]}).status_code == 404
    info = headless.get("/info").json()
    assert (info["model_id"], info["model_type"]) == ("docsearch", {"embedding": {"pooling": "mean"}})


def test_at_the_level_of_tokens_each_token_gets_a_vector(headless: httpx.Client, expected_TH: np.ndarray) -> None:
    sentences_TH = headless.post("/embed", json={"inputs": BARE}).raise_for_status().json()
    np.testing.assert_allclose(sentences_TH, expected_TH, atol=1e-6)
    hidden_TLH = headless.post("/embed?level=tokens", json={"inputs": BARE}).raise_for_status().json()
    num_tokens = [len(tokens) for tokens in headless.post("/tokenize", json={"inputs": BARE}).json()]
    assert [len(hidden_LH) for hidden_LH in hidden_TLH] == num_tokens
    for hidden_LH, expected_H in zip(hidden_TLH, expected_TH, strict=True):
        mean_H = np.mean(hidden_LH, axis=0)
        np.testing.assert_allclose(mean_H / np.linalg.norm(mean_H), expected_H, atol=1e-5)
    for query, more in (("level=words", {}), ("level=tokens", {"dimensions": 2})):
        answer = headless.post(f"/embed?{query}", json={"inputs": BARE, **more})
        assert (answer.status_code, "level" in answer.json()["error"]) == (422, True)
