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
from clozeline.inference.tokenization import TargetError, TextTooLongError
from clozeline.serving.http.house_texts import FILLING
from clozeline.serving.models import Catalogue
from clozeline.serving.zero_shot import choosing
from clozeline.system.errors import DataError
from tests.make.apps import opened, running
from tests.make.opened import load_as
from tests.make.packages import write_entailer

LABELS = ["list", "return file", "é"]
TEXT = "open the [MASK] of a"


def body_of(**parameters: object) -> dict[str, Any]:
    return {"inputs": "open it", "parameters": {"candidate_labels": LABELS} | parameters}


def test_zero_shot_labels_are_ranked_by_fill_mask_scores_and_older_clients_get_them_as_lists(
    client: httpx.Client, encoder: OpenEncoder
) -> None:
    body = body_of(hypothesis_template="of {}", multi_label=False)
    answer = client.post("/zero-shot", json=body)
    expected = encoder.converse(choosing(encoder, "open it", LABELS, template="of {}"))
    assert answer.headers["x-model"] == "encoder"
    labels = [{"label": one.label, "score": pytest.approx(one.score, abs=1e-5)} for one in expected]
    assert answer.json() == labels
    assert client.post("/pipeline/zero-shot-classification", json=body).json() == labels
    told = client.post("/pipeline/zero-shot-classification-lists", json=body).json()
    assert (told.pop("sequence"), told.pop("labels")) == ("open it", [one.label for one in expected])
    assert told == {"scores": pytest.approx([one.score for one in expected], abs=1e-5)}


def test_unusable_parameters_are_refused_with_their_error_code(client: httpx.Client) -> None:
    for body, code in (
        (body_of(multi_label=True), "labels_compete"),
        (body_of(candidate_labels=["lists"]), "unknown_target"),
        (body_of(hypothesis_template="no blank"), "unusable_data"),
    ):
        refused = client.post("/zero-shot", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, code)


def test_an_entailment_model_takes_precedence_and_can_score_labels_independently(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    write_entailer(tmp_path / "nli")
    with running([catalogue.named("encoder"), *opened(tmp_path / "nli")]) as client:
        answer = client.post("/zero-shot", json=body_of(candidate_labels=["any words at all"], multi_label=True))
        assert answer.headers["x-model"] == "nli"
        assert sum(one["score"] for one in answer.json()) != pytest.approx(1, abs=1e-3)
        asked = client.post("/zero-shot", json=body_of() | {"model": "encoder"})
        assert asked.headers["x-model"] == "encoder"
        assert all("/zero-shot" in card["routes"] for card in client.get("/models").json()["models"])


@pytest.fixture(scope="module")
def encoder(catalogue: Catalogue) -> OpenEncoder:
    return catalogue.answering(FILLING).model


def asked(model: OpenModel, text: str, labels: Sequence[str], **options: Any) -> AnyQuestion:
    """Return the only question of the dialogue."""
    turn = advanced(choosing(model, text, labels, **options))
    assert isinstance(turn, Round)
    (question,) = turn.questions
    return question


def entailer(folder: Path, labels: tuple[str, ...] = ("entailment", "not_entailment")) -> Classifier:
    write_entailer(folder, labels)
    return load_as(Classifier, folder)


def test_a_label_scores_the_mean_of_its_words_in_the_last_blank(encoder: OpenEncoder) -> None:
    scores = encoder.converse(choosing(encoder, TEXT, LABELS, template="b {} c"))
    (logits_MV,) = encoder.rows(encoder.tokenize([f"{TEXT} b [MASK] c"]), "logits")
    ids = {label: [encoder.tokenizer.ids_of(word)[0] for word in label.split()] for label in LABELS}
    log_V = logits_MV[1] - np.log(np.exp(logits_MV[1]).sum())
    shares = np.exp([log_V[ids[label]].mean() for label in LABELS])
    expected = dict(zip(LABELS, shares / shares.sum(), strict=True))
    assert {one.label: one.score for one in scores} == pytest.approx(expected, abs=1e-5)
    assert [one.score for one in scores] == sorted((one.score for one in scores), reverse=True)


def test_a_mask_in_the_text_itself_is_not_taken_for_the_blank(encoder: OpenEncoder) -> None:
    logits_MV = np.zeros((2, encoder.manifest.vocab_size), dtype=np.float32)
    logits_MV[0, encoder.tokenizer.ids_of("list")] = 9
    logits_MV[1, encoder.tokenizer.ids_of("é")] = 5
    assert asked(encoder, TEXT, LABELS).read(0, logits_MV)[0].label == "é"


def test_a_long_text_is_cut_and_the_prompt_stays_whole(encoder: OpenEncoder) -> None:
    long = "a b c d " * 40
    with pytest.raises(TextTooLongError, match="a prompt of"):
        asked(encoder, long, LABELS)
    (read,) = asked(encoder, long, LABELS, truncate=True).texts
    assert (len(read), len(read.mask_spans)) == (encoder.manifest.max_length, 1)


def test_a_label_that_does_not_fit_the_blank_and_a_template_without_one_blank_are_refused(
    encoder: OpenEncoder, tmp_path: Path
) -> None:
    nli = entailer(tmp_path / "nli")
    for label in ("lists", "list 🙂", " "):
        with pytest.raises(TargetError, match="cannot be filled into the prompt"):
            asked(encoder, TEXT, ["list", label])
    for template in ("no blank", "{} and {}", "{label} is {}"):
        for model in (encoder, nli):
            with pytest.raises(DataError, match="hypothesis_template"):
                asked(model, TEXT, LABELS, template=template)


@pytest.mark.parametrize("names", [("contradiction", "neutral", "entailment"), ("ENTAILMENT", "not_entailment")])
def test_entailment_scores_equal_those_of_the_transformers_pipeline(tmp_path: Path, names: tuple[str, ...]) -> None:
    nli = entailer(tmp_path / "nli", names)
    logits_LC = np.array(nli.rows(nli.tokenize([("open a", f"of {label}") for label in LABELS]), "logits"))
    place, against = (2, 0) if len(names) == 3 else (0, 1)
    among = np.exp(logits_LC[:, place]) / np.exp(logits_LC[:, place]).sum()
    each = 1 / (1 + np.exp(logits_LC[:, against] - logits_LC[:, place]))
    for expected, multi_label in ((among, False), (each, True)):
        found = nli.converse(choosing(nli, "open a", LABELS, template="of {}", multi_label=multi_label))
        wanted = dict(zip(LABELS, expected, strict=True))
        assert {one.label: one.score for one in found} == pytest.approx(wanted, abs=1e-5)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
