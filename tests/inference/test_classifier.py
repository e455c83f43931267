"""Answers of a classifier equal the trained model's, and those of a tagger transformers' pipeline, over windows too."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from clozeline.inference.classifier import Aggregation, Classifier, Entity, Tagger, extents
from clozeline.inference.fields import TagReading
from clozeline.inference.tokenization import NotAPairError
from tests.make.opened import load_as
from tests.make.packages import TAGS, write_ranker, write_tagger

TEXTS = [
    "the encoder reads a sentence, and returns the Tensors of a tokenizer that is small",
    "small models answer quickly on ordinary processors; processors cut text into pieces",
    "a é 中 [word] of sixty-four unknown-like pieces!",
]


def test_scores_equal_those_of_the_trained_model(classifier_package: Path, small_classifier: Path) -> None:
    classifier = load_as(Classifier, classifier_package, precision="fp32")
    model = AutoModelForSequenceClassification.from_pretrained(small_classifier).eval()
    tokenizer = AutoTokenizer.from_pretrained(small_classifier)
    for text, answers in zip(TEXTS, classifier.classify(TEXTS, top_k=3), strict=True):
        with torch.inference_mode():
            scores_C = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(dim=0)
        order = scores_C.argsort(descending=True)
        assert [answer.label for answer in answers] == [model.config.id2label[int(place)] for place in order]
        np.testing.assert_allclose([answer.score for answer in answers], scores_C[order], atol=1e-5)
        (best,) = classifier.classify([text], top_k=1)
        assert (best, classifier.classify([text], top_k=50)) == (answers[:1], [answers])


def test_a_pair_model_refuses_a_single_text(tmp_path: Path) -> None:
    write_ranker(tmp_path / "ranker")
    ranker = load_as(Classifier, tmp_path / "ranker")
    with pytest.raises(NotAPairError, match=r"(?s)text 1 is a single text.*'the list'"):
        ranker.classify([("open", "the file"), "the list"])


@pytest.fixture(scope="module")
def tagger(tagger_package: Path) -> Tagger:
    return load_as(Tagger, tagger_package, precision="fp32")


def tiny(folder: Path, max_length: int) -> Tagger:
    write_tagger(folder)
    return load_as(Tagger, folder, max_length=max_length)


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_entities_equal_those_of_the_transformers_pipeline(
    tagger: Tagger, small_tagger: Path, strategy: Aggregation
) -> None:
    stock = pipeline("token-classification", model=str(small_tagger), aggregation_strategy=strategy)
    names = ("entity_group", "word", "start", "end") if strategy != "none" else ("entity", "word", "index", "start")
    for text, ours in zip(TEXTS, tagger.tag(TEXTS, strategy=strategy), strict=True):
        theirs = stock(text)
        assert len(theirs) > 1
        assert [[getattr(one, name) for name in names] for one in ours] == [[one[n] for n in names] for one in theirs]
        assert [one.score for one in ours] == pytest.approx([float(one["score"]) for one in theirs], abs=1e-4)


def test_ignored_labels_are_left_out(tagger: Tagger) -> None:
    (every,) = tagger.tag(TEXTS[:1], ignored=())
    (things,) = tagger.tag(TEXTS[:1], ignored=("O", "act"))
    assert {one.entity_group for one in every} == {"O", "thing", "act"}
    assert things == [one for one in every if one.entity_group == "thing"]


@pytest.mark.parametrize(("strategy", "overlap"), [("none", 3), ("first", None), ("first", 500)])
def test_a_text_of_many_windows_gets_the_tags_of_the_whole_text(
    tmp_path: Path, strategy: Aggregation, overlap: int | None
) -> None:
    """The graph reads each token alone, so the cuts between windows can only affect how answers are combined."""
    short, whole = tiny(tmp_path / "short", 16), tiny(tmp_path / "whole", 4096)
    words = ["the", "lists", "of", "opened", "files", "a", "b", "c", "return", "é"]
    texts = [" ".join(words[n % 10] for n in range(211)), "a file", "list"]
    assert len(short.tagging(texts, overlap=overlap).texts) > 16
    found = short.converse(short.tags(texts, TagReading(aggregation_strategy=strategy, stride=overlap)))
    assert found == whole.tag(texts, strategy=strategy)
    assert len(found[0]) > 50
    assert all(one.word == texts[0][one.start : one.end] for one in found[0] if isinstance(one, Entity))


def test_a_token_is_labelled_by_the_window_with_more_context_around_it(tmp_path: Path) -> None:
    short, letters = tiny(tmp_path / "short", 12), "abcdefghijklmnopqrst"
    text = " ".join(letters)
    windows = short.answers(short.tagging([text], overlap=4))
    assert [window.first_token for window in windows] == [0, 6, 12]
    for window, mark in zip(windows, (0.1, 0.2, 0.3), strict=True):
        window.score_TC[:] = mark
    (tokens,) = short.scored_tokens([text], windows)
    told = [round(float(token.score_C[0]), 1) for token in tokens]
    assert told == [0.1] * 8 + [0.2] * 6 + [0.3] * 6
    assert [token.text for token in tokens] == [*letters]


@given(st.lists(st.sampled_from(["O", *TAGS[1:]]), max_size=12))
def test_extents_equal_those_of_seqeval_also_for_invalid_sequences(tags: list[str]) -> None:
    found = set(get_entities(tags)) if any(tag != "O" for tag in tags) else set()
    assert {(one.type, one.first, one.last) for one in extents(tags)} == found
