"""Routes of multi-label classifiers, taggers and question answerers."""

from dataclasses import asdict

import httpx
import numpy as np
import pytest

from clozeline.inference.classifier import Aggregation
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
    (scores,) = client.post("/classify", json={"inputs": TEXT, "model": "topics"}).json()
    (expected,) = catalogue.answering(CLASSIFYING, "topics").model.classify([TEXT], top_k=9)
    assert {one["label"]: one["score"] for one in scores} == near({one.label: one.score for one in expected})
    assert {one["label"] for one in scores} == set(TOPICS)
    body = {"inputs": TEXT, "model": "topics"}
    (raw,), (softmax,) = (
        client.post("/classify", json=body | {"parameters": {"function_to_apply": function}}).json()
        for function in ("none", "softmax")
    )
    logistic = {one["label"]: 1 / (1 + np.exp(-one["score"])) for one in raw}
    assert {one["label"]: one["score"] for one in scores} == near(logistic)
    assert sum(one["score"] for one in scores) != pytest.approx(1, abs=0.01)
    assert sum(one["score"] for one in softmax) == pytest.approx(1)


PAIRS = [{"text": "open", "text_pair": "the file"}, {"text": "é", "text_pair": "a list"}]


@pytest.mark.parametrize("route", ["/classify", "/pipeline/text-classification"])
def test_pairs_are_sent_to_the_pair_model(client: httpx.Client, catalogue: Catalogue, route: str) -> None:
    given = [(pair["text"], pair["text_pair"]) for pair in PAIRS]
    ranker = catalogue.answering(CLASSIFYING, "ranker").model
    expected = [[asdict(one) for one in scores] for scores in ranker.classify(given)]
    several = client.post(route, json={"inputs": PAIRS})
    assert several.headers["x-model"] == "ranker"
    assert [near(labels[0]["score"]) for labels in several.json()] == [labels[0]["score"] for labels in expected]
    (alone,) = client.post(route, json={"inputs": PAIRS[1], "model": "ranker"}).json()
    assert near(alone[0]["score"]) == expected[1][0]["score"]


ALONE = "is a single text, but the model reads pairs"
REFUSED: list[tuple[str, dict[str, object], int, str | None, list[str]]] = [
    ("/classify", {"inputs": PAIRS[0], "model": "library"}, 404, "model", []),
    ("/classify", {"inputs": {"text": "a"}}, 422, "inputs.text_pair", []),
    ("/classify", {"inputs": {"text": "a", "text_pair": " "}}, 422, "inputs.text_pair", []),
    ("/classify", {"inputs": PAIRS[0] | {"other": "a"}}, 422, "inputs.other", []),
    ("/classify", {"inputs": [PAIRS[0], "a"]}, 422, "inputs[1]", []),
    ("/classify", {"inputs": ["a", PAIRS[0]]}, 422, "inputs[1]", []),
    ("/classify", {"inputs": 5}, 422, "inputs", []),
    ("/classify", {"inputs": TEXT, "model": "ranker"}, 422, "inputs[0]", ["not_a_pair", ALONE, '"text_pair"']),
    ("/classify", {"inputs": ["a", TEXT], "model": "ranker"}, 422, "inputs[0]", ["not_a_pair", ALONE, '"text_pair"']),
    ("/pipeline/text-classification", {"inputs": TEXT, "model": "ranker"}, 422, None, [ALONE, '"text_pair"']),
    ("/predict", {"inputs": [["open", "the file"], [TEXT]]}, 422, None, [ALONE, "to /predict"]),
    (
        "/tag",
        {"inputs": TEXT, "parameters": {"aggregation_strategy": "last"}},
        422,
        "parameters.aggregation_strategy",
        [],
    ),
    ("/tag", {"inputs": TEXT, "parameters": {"stride": -1}}, 422, "parameters.stride", []),
    ("/tag", {"inputs": " "}, 422, "inputs", []),
    ("/answer", {"inputs": "who?"}, 422, "inputs", []),
    ("/answer", {"inputs": {"question": "who?"}}, 422, "inputs.context", []),
    ("/answer", {"inputs": ASKED, "parameters": {"top_k": 0}}, 422, "parameters.top_k", []),
    ("/answer", {"inputs": ASKED, "parameters": {"max_seq_len": 4}}, 422, "inputs.question", []),
    ("/rerank", {"query": "who?", "texts": []}, 422, None, []),
    *(
        (path, {"inputs": inputs, "model": model}, 404, "model", ["no model of that name answers"])
        for path, inputs, model in (
            ("/tag", TEXT, "library"),
            ("/answer", ASKED, "names"),
            ("/classify", TEXT, "names"),
        )
    ),
]


@pytest.mark.parametrize(("path", "body", "status", "param", "told"), REFUSED)
def test_an_input_that_the_model_cannot_read_is_named(
    client: httpx.Client, path: str, body: dict[str, object], status: int, param: str | None, told: list[str]
) -> None:
    refused = client.post(path, json=body)
    error = refused.json()["error"]
    assert refused.status_code == status
    assert param is None or error["param"] == param
    assert [part for part in told if part not in str(error)] == []


@pytest.mark.parametrize("route", ["/classify", "/predict"])
def test_a_single_text_is_refused_if_all_models_read_pairs(catalogue: Catalogue, route: str) -> None:
    with running([catalogue.named("ranker")]) as client:
        assert client.post(route, json={"inputs": TEXT}).status_code == 422


def test_the_card_states_how_labels_are_scored(client: httpx.Client) -> None:
    cards = {card["name"]: card for card in client.get("/models").json()["models"]}
    told = ("label_scores", "decision_threshold", "reads_pairs")
    assert [cards["topics"][name] for name in told] == ["sigmoid", 0.4, False]
    assert [cards["library"][name] for name in told] == ["softmax", None, False]
    assert [cards["ranker"][name] for name in told] == ["sigmoid", 0.5, True]
    assert [name for name, card in cards.items() if "/rerank" in card["routes"]] == ["ranker"]
    assert cards["names"]["routes"][0] == "/tag"
    assert cards["reader"]["routes"][0] == "/answer"


def test_one_text_gets_a_list_of_entities_and_several_texts_one_list_each(
    client: httpx.Client, catalogue: Catalogue
) -> None:
    expected = [[asdict(one) for one in found] for found in catalogue.answering(TAGGING).model.tag([TEXT, "a"])]
    answer = client.post("/tag", json={"inputs": TEXT})
    assert answer.headers["x-model"] == "names"
    assert [one["entity_group"] for one in answer.json()] == [one["entity_group"] for one in expected[0]]
    assert [one["score"] for one in answer.json()] == near([one["score"] for one in expected[0]])
    assert [one["word"] for one in answer.json()] == [one["word"] for one in expected[0]]
    several = client.post("/tag", json={"inputs": [TEXT, "a"]}).json()
    assert several[0] == answer.json()
    assert len(several) == 2


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_every_aggregation_can_be_requested(client: httpx.Client, catalogue: Catalogue, strategy: Aggregation) -> None:
    parameters = {"aggregation_strategy": strategy, "ignore_labels": [], "stride": 2}
    found = client.post("/tag", json={"inputs": TEXT, "parameters": parameters}).json()
    (expected,) = catalogue.answering(TAGGING).model.tag([TEXT], strategy=strategy, ignored=())
    assert [one["word"] for one in found] == [one.word for one in expected]


def test_a_long_text_is_tagged_to_its_end(client: httpx.Client) -> None:
    text = f"{'the ' * 3000}list of a file"
    assert len(text) > 10_000
    parameters = {"ignore_labels": [], "aggregation_strategy": "none"}
    found = client.post("/tag", json={"inputs": text, "parameters": parameters}).json()
    assert [one["index"] for one in found] == list(range(1, 3005))
    assert [text[one["start"] : one["end"]] for one in found[-4:]] == ["list", "of", "a", "file"]
    assert {one["entity"] for one in found} <= set(TAGS)


def test_one_answer_comes_as_an_object_and_several_as_a_list(client: httpx.Client, catalogue: Catalogue) -> None:
    (best,) = catalogue.answering(ANSWERING).model.ask([(ASKED["question"], ASKED["context"])])[0]
    answer = client.post("/answer", json={"inputs": ASKED})
    assert answer.headers["x-model"] == "reader"
    assert (answer.json()["answer"], answer.json()["start"]) == (best.answer, best.start)
    assert answer.json()["score"] == near(best.score)
    parameters = {"top_k": 3, "handle_impossible_answer": True, "max_answer_len": 2, "max_seq_len": 20, "doc_stride": 4}
    several = client.post("/answer", json={"inputs": ASKED, "parameters": parameters}).json()
    assert len(several) == 3
    assert all(ASKED["context"][one["start"] : one["end"]] == one["answer"] for one in several)


def test_an_answer_is_found_at_the_end_of_a_long_context(client: httpx.Client, catalogue: Catalogue) -> None:
    """The context before it repeats the word that the model scores lowest as an answer."""
    model = catalogue.answering(ANSWERING).model
    words = ["the", "list", "of", "a", "file", "and", "é"]
    least = min(words, key=lambda word: model.ask([("open", word)])[0][0].score)
    context = f"{f'{least} ' * 2000}{ASKED['context']}"
    answer = client.post("/answer", json={"inputs": ASKED | {"context": context}})
    found = answer.json()
    assert found["end"] > 2000 * len(f"{least} ")
    assert context[found["start"] : found["end"]] == found["answer"]
    assert int(answer.headers["x-compute-tokens"]) > 2000


def test_mlflows_route_gives_entities_too(client: httpx.Client) -> None:
    answer = client.post("/invocations", json={"inputs": [TEXT], "params": {"model": "names"}}).json()
    assert answer["predictions"] == [{"entities": client.post("/tag", json={"inputs": TEXT}).json()}]
