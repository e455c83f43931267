"""A classifier's answers equal the trained model's."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from clozeline.inference.classifier import Classifier
from clozeline.inference.tokenization import NotAPairError
from clozeline.system.errors import DataError
from tests.make.opened import load_as
from tests.make.packages import write_ranker

TEXTS = ["returns a tensor", "small models answer quickly on ordinary processors", "the file is empty"]


@pytest.fixture(scope="module")
def classifier(classifier_package: Path) -> Classifier:
    return load_as(Classifier, classifier_package, precision="fp32")


def test_scores_equal_those_of_the_trained_model(classifier: Classifier, small_classifier: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(small_classifier).eval()
    tokenizer = AutoTokenizer.from_pretrained(small_classifier)
    for text, answers in zip(TEXTS, classifier.classify(TEXTS, top_k=3), strict=True):
        with torch.inference_mode():
            scores_C = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(dim=0)
        order = scores_C.argsort(descending=True)
        assert [answer.label for answer in answers] == [model.config.id2label[int(place)] for place in order]
        np.testing.assert_allclose([answer.score for answer in answers], scores_C[order], atol=1e-5)


def test_as_many_labels_as_requested_or_all_come_best_first(classifier: Classifier) -> None:
    (two,), (every,) = (classifier.classify(TEXTS[:1], top_k=top_k) for top_k in (2, 50))
    assert every[0].score >= every[1].score
    assert (two, len(every)) == (every[:2], 3)
    assert sum(answer.score for answer in every) == pytest.approx(1)
    with pytest.raises(DataError, match="top_k"):
        classifier.classify(TEXTS, top_k=0)


def test_a_pair_model_refuses_a_single_text(tmp_path: Path) -> None:
    write_ranker(tmp_path / "ranker")
    ranker = load_as(Classifier, tmp_path / "ranker")
    with pytest.raises(NotAPairError, match="text 1 is a single text") as caught:
        ranker.classify([("open", "the file"), "the list"])
    assert caught.value.number == 1
    assert caught.value.given == "'the list'"
