"""Routes of text-embeddings-inference, called as its clients call them."""

from pathlib import Path

import httpx
import numpy as np
import pytest

from clozeline.inference.classifier import Classifier
from clozeline.serving.http.house_labels import CLASSIFYING, CLASSIFYING_PAIRS
from clozeline.serving.http.house_texts import FILLING
from clozeline.serving.http.tei import RERANKING
from clozeline.serving.models import Catalogue
from tests.make.apps import opened, running
from tests.make.packages import LABELS, write_entailer


def test_labels_come_in_a_flat_list_best_first_and_in_a_list_for_each_of_several_texts(client: httpx.Client) -> None:
    flat = client.post("/predict", json={"inputs": "open the file"}).json()
    assert [set(label) for label in flat] == [{"label", "score"}] * 3
    assert flat == sorted(flat, key=lambda label: -label["score"])
    assert client.post("/predict", json={"inputs": ["open the file"]}).json() == flat
    assert client.post("/classify", json={"inputs": "open the file"}).json() == [flat]
    alone = client.post("/predict", json={"inputs": "a"}).json()
    _, beside = client.post("/predict", json={"inputs": [["open the file"], ["a"]]}).json()
    assert [label["label"] for label in beside] == [label["label"] for label in alone]
    nested = client.post("/pipeline/text-classification", json={"inputs": "a", "parameters": {"top_k": 3}}).json()
    assert nested == [alone]


def test_raw_scores_are_the_logits(client: httpx.Client, catalogue: Catalogue) -> None:
    raw = client.post("/predict", json={"inputs": "open the file", "raw_scores": True}).json()
    model = catalogue.answering(CLASSIFYING).model
    assert isinstance(model, Classifier)
    (logits_C,) = model.rows(model.tokenize(["open the file"]), "logits")
    by_label = {label["label"]: label["score"] for label in raw}
    np.testing.assert_allclose([by_label[label] for label in LABELS], logits_C, atol=1e-5)


def test_two_texts_in_one_list_are_a_pair_for_a_pair_model(client: httpx.Client, catalogue: Catalogue) -> None:
    ((expected,),) = catalogue.answering(CLASSIFYING_PAIRS).model.classify([("open", "the file")])
    answer = client.post("/predict", json={"inputs": ["open", "the file"]})
    assert answer.headers["x-model"] == "ranker"
    assert answer.json() == [{"label": "LABEL_0", "score": pytest.approx(expected.score, abs=1e-5)}]
    several = client.post("/predict", json={"inputs": [["open", "the file"], ["a", "b"]]}).json()
    assert [len(labels) for labels in several] == [1, 1]
    assert several[0][0]["score"] == pytest.approx(expected.score, abs=1e-5)


def test_similarity_is_the_cosine_of_the_embeddings(client: httpx.Client) -> None:
    texts = ["return the list", "open the file", "a"]
    body = {"inputs": {"source_sentence": texts[0], "sentences": texts}, "parameters": {"truncate": True}}
    vectors_TH = np.array(client.post("/embed", json={"inputs": texts}).json())
    cut_TH = client.post(
        "/embed", json={"inputs": texts, "normalize": True, "dimensions": 4, "prompt_name": None}
    ).json()
    np.testing.assert_allclose(
        cut_TH, vectors_TH[:, :4] / np.linalg.norm(vectors_TH[:, :4], axis=1, keepdims=True), atol=1e-6
    )
    np.testing.assert_allclose(client.post("/similarity", json=body).json(), vectors_TH @ vectors_TH[0], atol=1e-6)


_SENTENCES = {"source_sentence": "a", "sentences": ["b"]}


def test_what_the_model_cannot_read_is_refused(client: httpx.Client) -> None:
    similar = {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"prompt_name": "query"}}
    for path, body, told in (
        ("/embed", {"inputs": "a", "dimensions": 9}, "`dimensions`"),
        ("/embed", {"inputs": "a", "normalize": False}, "given: false; expected: true"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, "no prompt of this name"),
        ("/similarity", similar, "no prompt of this name"),
        *(("/predict", {"inputs": it}, "inputs") for it in ([["a"], []], [["a"], "b"], [], [["a", "b", "c"]])),
        *(("/decode", {"ids": ids}, "id") for ids in ([], [-1], [10**6], [2**70], [[5], 6])),
    ):
        refused = client.post(path, json=body)
        assert (refused.status_code, refused.json()["error_type"]) == (422, "Validation")
        assert told in refused.json()["error"]


def test_tokens_are_returned_with_their_offsets_in_the_text(client: httpx.Client, catalogue: Catalogue) -> None:
    text = "Return the LISTs é"
    (tokens,) = client.post("/tokenize", json={"inputs": text}).json()
    assert [token["special"] for token in tokens] == [True, *[False] * 5, True]
    assert [token["text"] for token in tokens] == ["[CLS]", "Return", "the", "LIST", "s", "é", "[SEP]"]
    assert all(text[token["start"] : token["stop"]] == token["text"] for token in tokens[1:-1])
    assert tokens[0]["start"] is None
    (ids,) = (one.ids_L.tolist() for one in catalogue.answering(FILLING).model.tokenize([text]))
    assert [token["id"] for token in tokens] == ids
    bare, _ = client.post("/tokenize", json={"inputs": [text, "a"], "add_special_tokens": False}).json()
    assert bare == tokens[1:-1]
    (whole,) = client.post("/tokenize", json={"inputs": "a " * 5000}).json()
    assert len(whole) == 5002, "more than the model reads"


def test_tokens_are_decoded_to_the_text(client: httpx.Client) -> None:
    (tokens,) = client.post("/tokenize", json={"inputs": "return the list"}).json()
    ids = [token["id"] for token in tokens]
    assert client.post("/decode", json={"ids": ids}).json() == ["return the list"]
    assert client.post("/decode", json={"ids": [ids, ids[1:2]]}).json() == ["return the list", "return"]
    (whole,) = client.post("/decode", json={"ids": ids, "skip_special_tokens": False}).json()
    assert whole == "[CLS] return the list [SEP]"


def test_texts_are_ranked_by_their_scores_with_the_query(client: httpx.Client, catalogue: Catalogue) -> None:
    query, texts = "open the list", ["a", "the file", "return é", "of the lists"]
    ranker = catalogue.answering(RERANKING).model
    scores = [best.score for (best,) in ranker.classify([(query, text) for text in texts])]
    answer = client.post("/rerank", json={"query": query, "texts": texts})
    assert answer.headers["x-model"] == "ranker"
    ranks = answer.json()
    order = sorted(range(4), key=lambda place: -scores[place])
    assert ranks == [{"index": place, "score": pytest.approx(scores[place], abs=1e-5)} for place in order]
    raw = client.post("/rerank", json={"query": query, "texts": texts, "raw_scores": True, "return_text": True}).json()
    assert [rank["text"] for rank in raw] == [texts[place] for place in order]
    chances = [1 / (1 + np.exp(-rank["score"])) for rank in raw]
    assert chances == pytest.approx([rank["score"] for rank in ranks], abs=1e-5)


def test_the_classifier_with_an_entailment_label_reranks(tmp_path: Path) -> None:
    write_entailer(tmp_path / "nli", ("contradiction", "entailment", "neutral"))
    write_entailer(tmp_path / "mood", LABELS)
    served = Catalogue(opened(tmp_path / "mood", tmp_path / "nli"))
    chosen = served.answering(RERANKING)
    assert (chosen.identity.name, chosen.model.relevant_label) == ("nli", "entailment")
    with running(served) as client:
        ranks = client.post("/rerank", json={"query": "open", "texts": ["the file", "a"]}).json()
        scores = chosen.model.classify([("open", "the file"), ("open", "a")], top_k=3)
    of_label = [next(one.score for one in labels if one.label == "entailment") for labels in scores]
    assert {rank["index"]: rank["score"] for rank in ranks} == pytest.approx(dict(enumerate(of_label)), abs=1e-5)
