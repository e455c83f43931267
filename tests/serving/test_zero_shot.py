"""Labels are ranked by cloze as in the task and by entailment as in transformers' pipeline, for both generations of the
hub's client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from clozeline.inference.classifier import Classifier
from clozeline.inference.language import OpenEncoder
from clozeline.inference.open_model import AnyQuestion, OpenModel, Round, advanced
from clozeline.inference.package import load
from clozeline.inference.tokenization import TargetError, TextTooLongError
from clozeline.serving.http.house_texts import FILLING
from clozeline.serving.models import Catalogue
from clozeline.serving.zero_shot import can_choose, choosing, tells_entailment
from clozeline.system.errors import DataError
from tests.make.apps import opened, running
from tests.make.opened import load_as
from tests.make.packages import classifier_graph, write_classifier, write_encoder, write_package, write_tagger

LABELS = ["list", "file", "é"]


def test_zero_shot_labels_are_ranked_by_fill_mask_scores(client: httpx.Client, catalogue: Catalogue) -> None:
    body = {"inputs": "open it", "parameters": {"candidate_labels": LABELS, "hypothesis_template": "of {}"}}
    answer = client.post("/zero-shot", json=body)
    encoder = catalogue.answering(FILLING).model
    expected = encoder.converse(choosing(encoder, "open it", LABELS, template="of {}"))
    assert answer.headers["x-model"] == "encoder"
    assert [one["label"] for one in answer.json()] == [one.label for one in expected]
    assert [one["score"] for one in answer.json()] == pytest.approx([one.score for one in expected], abs=1e-5)
    assert client.post("/pipeline/zero-shot-classification", json=body).json() == answer.json()


def test_clients_older_than_1_0_get_the_same_scores_as_lists(client: httpx.Client) -> None:
    body = {"inputs": "open it", "parameters": {"candidate_labels": LABELS, "multi_label": False}}
    told = client.post("/pipeline/zero-shot-classification-lists", json=body).json()
    expected = client.post("/pipeline/zero-shot-classification", json=body).json()
    assert told.keys() == {"sequence", "labels", "scores"}
    assert told["sequence"] == "open it"
    assert told["labels"] == [one["label"] for one in expected]
    assert told["scores"] == pytest.approx([one["score"] for one in expected], abs=1e-5)
    assert sum(told["scores"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"candidate_labels": LABELS, "multi_label": True}, "labels_compete"),
        ({"candidate_labels": ["lists"]}, "unknown_target"),
        ({"candidate_labels": LABELS, "hypothesis_template": "no blank"}, "unusable_data"),
        ({"candidate_labels": []}, "invalid_request"),
        ({}, "invalid_request"),
    ],
)
def test_unusable_parameters_are_refused_with_their_error_code(
    client: httpx.Client, parameters: dict[str, object], code: str
) -> None:
    refused = client.post("/zero-shot", json={"inputs": "open it", "parameters": parameters})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, code)


def test_an_entailment_model_takes_precedence_and_can_score_labels_independently(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    labels = ("contradiction", "neutral", "entailment")
    write_package(tmp_path / "nli", "text-classification", classifier_graph(), labels=labels, reads_pairs=True)
    nli = opened(tmp_path / "nli")[0]
    with running([catalogue.named("encoder"), nli]) as client:
        parameters = {"candidate_labels": ["any words at all", "list"], "multi_label": True}
        answer = client.post("/zero-shot", json={"inputs": "open it", "parameters": parameters})
        assert answer.headers["x-model"] == "nli"
        assert sum(one["score"] for one in answer.json()) != pytest.approx(1, abs=1e-3)
        body = {"inputs": "open it", "parameters": {"candidate_labels": LABELS}, "model": "encoder"}
        assert client.post("/zero-shot", json=body).headers["x-model"] == "encoder"
        cards = {card["name"]: card["routes"] for card in client.get("/models").json()["models"]}
        assert all("/zero-shot" in routes for routes in cards.values())


def test_the_route_gives_404_without_a_suitable_model(catalogue: Catalogue) -> None:
    with running([catalogue.named("library")]) as client:
        refused = client.post("/zero-shot", json={"inputs": "a", "parameters": {"candidate_labels": ["b"]}})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["given"]) == (404, "no_such_model", "no model name")
        assert error["message"] == "no served model answers /zero-shot"  # the request named no model
        assert "/zero-shot" not in client.get("/models").json()["models"][0]["routes"]


TEXT = "open the [MASK] of a"
CHOICES = ["list", "return file", "é"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> OpenEncoder:
    write_encoder(folder := tmp_path_factory.mktemp("zero") / "encoder")
    return load_as(OpenEncoder, folder)


def asked(model: OpenModel, text: str, labels: Sequence[str], **options: Any) -> AnyQuestion:
    """Return the only question of the dialogue."""
    turn = advanced(choosing(model, text, labels, **options))
    assert isinstance(turn, Round)
    (question,) = turn.questions
    return question


def entailer(folder: Path, labels: tuple[str, ...]) -> Classifier:
    write_package(folder, "text-classification", classifier_graph(len(labels)), labels=labels, reads_pairs=True)
    return load_as(Classifier, folder)


def test_a_label_scores_the_mean_of_its_words_in_the_last_blank(encoder: OpenEncoder) -> None:
    scores = encoder.converse(choosing(encoder, TEXT, CHOICES, template="b {} c"))
    read = encoder.tokenize([f"{TEXT} b [MASK] c"])
    (logits_MV,) = encoder.rows(read, "logits")
    ids = {label: [encoder.tokenizer.ids_of(word)[0] for word in label.split()] for label in CHOICES}
    log_V = logits_MV[1] - np.log(np.exp(logits_MV[1]).sum())
    shares = np.exp([log_V[ids[label]].mean() for label in CHOICES])
    expected = dict(zip(CHOICES, shares / shares.sum(), strict=True))
    assert {one.label: one.score for one in scores} == pytest.approx(expected, abs=1e-5)
    assert [one.score for one in scores] == sorted((one.score for one in scores), reverse=True)


def test_a_mask_in_the_text_itself_is_not_taken_for_the_blank(encoder: OpenEncoder) -> None:
    question = asked(encoder, TEXT, CHOICES)
    logits_MV = np.zeros((2, encoder.manifest.vocab_size), dtype=np.float32)
    logits_MV[0, encoder.tokenizer.ids_of("list")] = 9
    logits_MV[1, encoder.tokenizer.ids_of("é")] = 5
    assert question.read(0, logits_MV)[0].label == "é"


def test_a_long_text_is_cut_and_the_prompt_stays_whole(encoder: OpenEncoder) -> None:
    long = "a b c d " * 40
    with pytest.raises(TextTooLongError, match="a prompt of"):
        asked(encoder, long, CHOICES)
    question = asked(encoder, long, CHOICES, truncate=True)
    (read,) = question.texts
    assert len(read) == encoder.manifest.max_length
    assert len(read.mask_spans) == 1
    assert len(encoder.answers(question)[0]) == 3


@pytest.mark.parametrize("label", ["lists", "list 🙂", " "])
def test_a_label_that_does_not_fit_the_blank_is_refused_by_name(encoder: OpenEncoder, label: str) -> None:
    with pytest.raises(TargetError, match="cannot be filled into the prompt"):
        asked(encoder, TEXT, ["list", label])


@pytest.mark.parametrize("template", ["no blank", "{} and {}", "{label} is {}"])
def test_a_template_has_one_blank(encoder: OpenEncoder, tmp_path: Path, template: str) -> None:
    nli = entailer(tmp_path / "nli", ("contradiction", "entailment"))
    for model in (encoder, nli):
        with pytest.raises(DataError, match="hypothesis_template"):
            asked(model, TEXT, CHOICES, template=template)


@pytest.mark.parametrize("names", [("contradiction", "neutral", "entailment"), ("ENTAILMENT", "not_entailment")])
def test_entailment_scores_equal_those_of_the_transformers_pipeline(tmp_path: Path, names: tuple[str, ...]) -> None:
    nli = entailer(tmp_path / "nli", names)
    logits = nli.rows(nli.tokenize([("open a", f"of {label}") for label in CHOICES]), "logits")
    place = [name.lower() for name in names].index("entailment")
    against = 0 if place else 1
    entailed = np.array([logits[n][place] for n in range(3)])
    among = np.exp(entailed) / np.exp(entailed).sum()
    found = nli.converse(choosing(nli, "open a", CHOICES, template="of {}"))
    assert {one.label: one.score for one in found} == pytest.approx(dict(zip(CHOICES, among, strict=True)), abs=1e-5)
    each = [1 / (1 + np.exp(logits[n][against] - logits[n][place])) for n in range(3)]
    several = nli.converse(choosing(nli, "open a", CHOICES, template="of {}", multi_label=True))
    assert {one.label: one.score for one in several} == pytest.approx(dict(zip(CHOICES, each, strict=True)), abs=1e-5)
    assert [one.score for one in several] == sorted((one.score for one in several), reverse=True)


def test_only_encoders_and_entailment_models_can_choose_labels(encoder: OpenEncoder, tmp_path: Path) -> None:
    write_classifier(tmp_path / "library")
    write_tagger(tmp_path / "names")
    nli = entailer(tmp_path / "nli", ("entailment", "not_entailment"))
    assert [can_choose(model) for model in (encoder, nli)] == [True, True]
    assert [can_choose(load(tmp_path / name)) for name in ("library", "names")] == [False, False]
    assert [tells_entailment(model) for model in (encoder, nli)] == [False, True]
