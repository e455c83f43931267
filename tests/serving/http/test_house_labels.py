"""Routes of multi-label classifiers, taggers and question answerers."""

from dataclasses import asdict

import httpx
import numpy as np
import pytest

from clozeline.serving.http.house_labels import ANSWERING, CLASSIFYING, TAGGING
from clozeline.serving.models import Catalogue
from tests.make.apps import running
from tests.make.packages import TAGS, TOPICS

TEXT = "open the lists of a file"
ASKED = {"question": "open", "context": "the list of a file, and é"}


def near(answers: object) -> object:
    """Return `answers` with a tolerance of 1e-5, because the other texts of a micro-batch change the last digits."""
    return pytest.approx(answers, abs=1e-5)


def test_multi_label_scores_are_independent(client: httpx.Client, catalogue: Catalogue) -> None:
    def scores(**parameters: str) -> dict[str, float]:
        body = {"inputs": TEXT, "model": "topics", "parameters": parameters}
        return {one["label"]: one["score"] for one in client.post("/classify", json=body).json()[0]}

    (expected,) = catalogue.answering(CLASSIFYING, "topics").model.classify([TEXT], top_k=9)
    assert scores().keys() == set(TOPICS)
    assert scores() == near({one.label: one.score for one in expected})
    raw = scores(function_to_apply="none")
    assert scores() == near({label: 1 / (1 + np.exp(-logit)) for label, logit in raw.items()})
    assert sum(scores().values()) != pytest.approx(1, abs=0.01)
    total = sum(np.exp([*raw.values()]))
    assert scores(function_to_apply="softmax") == near({label: np.exp(logit) / total for label, logit in raw.items()})
    assert scores(function_to_apply="sigmoid") == near(scores())


def test_the_card_states_how_labels_are_scored(client: httpx.Client) -> None:
    cards = {card["name"]: card for card in client.get("/models").json()["models"]}
    told = ("label_scores", "decision_threshold", "reads_pairs")
    assert [cards["topics"][name] for name in told] == ["sigmoid", 0.4, False]
    assert [cards["library"][name] for name in told] == ["softmax", None, False]
    assert [cards["ranker"][name] for name in told] == ["sigmoid", 0.5, True]
    assert [name for name, card in cards.items() if "/rerank" in card["routes"]] == ["ranker"]


PAIRS = [{"text": "open", "text_pair": "the file"}, {"text": "é", "text_pair": "a list"}]


def test_pairs_are_sent_to_the_pair_model(client: httpx.Client, catalogue: Catalogue) -> None:
    ranker = catalogue.answering(CLASSIFYING, "ranker").model
    expected = [best.score for (best,) in ranker.classify([(pair["text"], pair["text_pair"]) for pair in PAIRS])]
    several = client.post("/classify", json={"inputs": PAIRS})
    assert several.headers["x-model"] == "ranker"
    assert [label["score"] for (label,) in several.json()] == near(expected)
    ((alone,),) = client.post("/classify", json={"inputs": PAIRS[1]}).json()
    assert alone["score"] == near(expected[1])


def test_an_input_that_the_model_cannot_read_is_named(client: httpx.Client) -> None:
    for path, body, status, param in (
        ("/classify", {"inputs": PAIRS[0], "model": "library"}, 404, "model"),
        ("/classify", {"inputs": {"text": "a"}}, 422, "inputs.text_pair"),
        ("/classify", {"inputs": [PAIRS[0], "a"]}, 422, "inputs[1]"),
        ("/classify", {"inputs": ["a", TEXT], "model": "ranker"}, 422, "inputs[0]"),
        ("/tag", {"inputs": TEXT, "parameters": {"stride": -1}}, 422, "parameters.stride"),
        ("/answer", {"inputs": {"question": "who?"}}, 422, "inputs.context"),
        ("/answer", {"inputs": ASKED, "parameters": {"max_seq_len": 4}}, 422, "inputs.question"),
        ("/answer", {"inputs": ASKED, "model": "names"}, 404, "model"),
    ):
        refused = client.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)


def test_a_single_text_is_refused_if_all_models_read_pairs(catalogue: Catalogue) -> None:
    with running([catalogue.named("ranker")]) as client:
        for route in ("/classify", "/predict", "/pipeline/text-classification"):
            refused = client.post(route, json={"inputs": TEXT})
            assert refused.status_code == 422
            assert "is a single text, but the model reads pairs" in refused.text


def test_one_text_gets_a_list_of_entities_and_several_texts_one_list_each(
    client: httpx.Client, catalogue: Catalogue
) -> None:
    expected = [asdict(one) for one in catalogue.answering(TAGGING).model.tag([TEXT])[0]]
    answer = client.post("/tag", json={"inputs": TEXT})
    assert answer.headers["x-model"] == "names"
    for name in ("entity_group", "word"):
        assert [one[name] for one in answer.json()] == [one[name] for one in expected]
    assert [one["score"] for one in answer.json()] == near([one["score"] for one in expected])
    parameters = {"aggregation_strategy": "none", "ignore_labels": [], "stride": 2}
    tokens = client.post("/tag", json={"inputs": TEXT, "parameters": parameters}).json()
    assert [TEXT[one["start"] : one["end"]] for one in tokens] == ["open", "the", "list", "s", "of", "a", "file"]
    assert {one["entity"] for one in tokens} <= set(TAGS)
    first, _ = client.post("/tag", json={"inputs": [TEXT, "a"]}).json()
    assert first == answer.json()


def test_one_answer_comes_as_an_object_and_several_as_a_list(client: httpx.Client, catalogue: Catalogue) -> None:
    (best,) = catalogue.answering(ANSWERING).model.ask([(ASKED["question"], ASKED["context"])])[0]
    answer = client.post("/answer", json={"inputs": ASKED})
    assert answer.headers["x-model"] == "reader"
    assert (answer.json()["answer"], answer.json()["start"]) == (best.answer, best.start)
    assert answer.json()["score"] == near(best.score)
    parameters = {"top_k": 3, "handle_impossible_answer": True, "max_answer_len": 2, "max_seq_len": 20, "doc_stride": 4}
    several = client.post("/answer", json={"inputs": ASKED, "parameters": parameters}).json()
    assert [ASKED["context"][one["start"] : one["end"]] == one["answer"] for one in several] == [True] * 3
