"""Answers of a graph: the masked positions depend only on the text, and answers come in the order of the texts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.exporting.exams import UNKNOWN, Exam, TokensExam, hidden_places, hide
from clozeline.inference.language import OpenEncoder
from clozeline.inference.open_model import GraphSession, TextBatch
from clozeline.inference.package import load
from clozeline.inference.tokenization import TokenizedText

SPECIALS = (0, 1, 2, 3, 4)
TEXTS = ["the encoder reads a sentence and fills in the word", "small models answer quickly", "a " * 200]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=80))
def test_one_token_in_seven_is_masked_deterministically_and_never_a_special_one(ids: list[int]) -> None:
    ids_L = np.array(ids, dtype=np.int64)
    places = hidden_places(ids_L, SPECIALS)
    num_ordinary = sum(token_id not in SPECIALS for token_id in ids)
    assert len(places) == np.ceil(0.15 * num_ordinary)
    assert not np.isin(ids_L[places], SPECIALS).any()
    assert (places == hidden_places(ids_L.copy(), SPECIALS)).all()


def test_masked_positions_differ_between_texts_and_cover_the_row() -> None:
    places = [hidden_places(np.arange(60) + shift, ()) for shift in range(100)]
    counts = np.bincount(np.concatenate(places), minlength=60)
    assert counts.min() > 0
    assert len({tuple(place) for place in places}) == 100


@pytest.fixture(scope="module")
def encoder(encoder_package: Path) -> OpenEncoder:
    opened = load(encoder_package, precision="fp32")
    assert isinstance(opened, OpenEncoder)
    return opened


def exam_with(kind: type[Exam], texts: Sequence[TokenizedText]) -> Exam:
    """Return an exam of these texts, without labels."""
    place_T = np.arange(len(texts))
    return kind(texts=texts, text_A=place_T, true_A=np.full(len(texts), UNKNOWN), metric="agreement")


def test_masking_keeps_the_true_ids_and_leaves_other_tokens_unchanged(encoder: OpenEncoder) -> None:
    (text,) = encoder.tokenize(TEXTS[:1])
    hidden = hide(text, encoder)
    places = hidden_places(text.ids_L, SPECIALS)
    assert (hidden.text.ids_L[places] == 4).all()
    assert (hidden.true_ids_M == text.ids_L[places]).all()
    assert (np.delete(hidden.text.ids_L, places) == np.delete(text.ids_L, places)).all()


def test_answers_equal_those_of_the_encoder_in_text_order(encoder: OpenEncoder) -> None:
    hidden = [hide(text, encoder).text for text in encoder.tokenize(TEXTS, truncate=True)]
    found = exam_with(TokensExam, hidden).answers(encoder, encoder.batches(hidden))
    logits, embeddings = (
        {
            position: rows
            for batch, values in encoder.run(hidden, output)
            for position, rows in zip(batch.positions, encoder.split(batch, output, values), strict=True)
        }
        for output in ("logits", "sentence_embedding")
    )
    assert (found.top1_A == np.concatenate([logits[text].argmax(axis=1) for text in range(3)])).all()
    assert found.embeddings_TH is not None
    np.testing.assert_array_equal(found.embeddings_TH, np.stack([embeddings[text] for text in range(3)]))


def test_the_exam_requests_the_same_outputs_as_the_server(
    encoder: OpenEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words and embeddings requested together are computed differently in the last layer than words alone."""
    hidden = [hide(text, encoder).text for text in encoder.tokenize(TEXTS, truncate=True)]
    asked = set()
    run = GraphSession.run

    def watched(session: GraphSession, batch: TextBatch, *outputs: str) -> object:
        asked.add(outputs)
        return run(session, batch, *outputs)

    monkeypatch.setattr(GraphSession, "run", watched)
    encoder.fill(["the [MASK] reads"])
    encoder.embed(TEXTS[:1])
    served = asked.copy()
    asked.clear()
    exam_with(TokensExam, hidden).answers(encoder, encoder.batches(hidden))
    assert asked == served


def test_a_classifier_answers_with_a_label_and_no_embedding(classifier_package: Path) -> None:
    classifier = load(classifier_package)
    texts = classifier.tokenize(TEXTS, truncate=True)
    found = exam_with(Exam, texts).answers(classifier, classifier.batches(texts))
    assert found.embeddings_TH is None
    labels = [best.label for (best,) in classifier.classify(TEXTS, truncate=True)]
    assert [classifier.manifest.labels[place] for place in found.top1_A] == labels
