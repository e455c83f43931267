"""A classifier's answers equal the trained model's."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from clozeline.inference.classifier import Classifier
from clozeline.inference.package import load
from clozeline.inference.tokenization import NotAPairError
from clozeline.system.errors import DataError
from tests.make.packages import write_ranker

TEXTS = ["returns a tensor", "small models answer quickly on ordinary processors", "the file is empty"]


@pytest.fixture(scope="module")
def classifier(classifier_package: Path) -> Classifier:
    opened = load(classifier_package, precision="fp32")
    assert isinstance(opened, Classifier)
    return opened


def test_scores_equal_those_of_the_trained_model(classifier: Classifier, small_classifier: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(small_classifier).eval()
    tokenizer = AutoTokenizer.from_pretrained(small_classifier)
    for text, answers in zip(TEXTS, classifier.classify(TEXTS, top_k=3), strict=True):
        with torch.inference_mode():
            scores_C = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(dim=0)
        order = scores_C.argsort(descending=True)
        assert [answer.label for answer in answers] == [model.config.id2label[int(place)] for place in order]
        np.testing.assert_allclose([answer.score for answer in answers], scores_C[order], atol=1e-5)


def test_the_requested_number_of_labels_comes_best_first(classifier: Classifier) -> None:
    (answers,) = classifier.classify(TEXTS[:1], top_k=2)
    assert len(answers) == 2
    assert answers[0].score >= answers[1].score


def test_a_request_for_too_many_labels_returns_all(classifier: Classifier) -> None:
    (answers,) = classifier.classify(TEXTS[:1], top_k=50)
    assert sum(answer.score for answer in answers) == pytest.approx(1)
    assert len(answers) == 3


def test_a_request_for_zero_labels_is_refused(classifier: Classifier) -> None:
    with pytest.raises(DataError, match="top_k"):
        classifier.classify(TEXTS, top_k=0)


def test_a_pair_model_refuses_a_single_text(tmp_path: Path) -> None:
    write_ranker(tmp_path / "ranker")
    ranker = load(tmp_path / "ranker")
    assert isinstance(ranker, Classifier)
    with pytest.raises(NotAPairError, match="text 1 is a single text") as caught:
        ranker.classify([("open", "the file"), "the list"])
    assert caught.value.number == 1
    assert caught.value.given == "'the list'"
