"""Batches hold every text once and stay within the budget, whatever the order of the texts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.inference.open_model import TextBatch, batches
from clozeline.inference.tokenization import TokenizedText

PAD = 0
Lengths = st.lists(st.integers(1, 40), max_size=30)


def texts_of(lengths: list[int]) -> list[TokenizedText]:
    """Return texts of these lengths, each with ids of its own."""
    return [TokenizedText(np.arange(length) + 100 * (n + 1), ()) for n, length in enumerate(lengths)]


def rows_of(batch: TextBatch) -> list[list[int]]:
    return [
        ids_L[mask_L == 1].tolist() for ids_L, mask_L in zip(batch.input_ids_BL, batch.attention_mask_BL, strict=True)
    ]


@given(Lengths)
def test_every_text_is_in_one_batch_with_its_own_tokens(lengths: list[int]) -> None:
    texts = texts_of(lengths)
    found = {
        position: row
        for batch in batches(texts, pad_id=PAD, batch_tokens=64)
        for position, row in zip(batch.positions, rows_of(batch), strict=True)
    }
    assert found == {number: text.ids_L.tolist() for number, text in enumerate(texts)}


@given(Lengths)
def test_only_a_single_long_text_exceeds_the_token_budget(lengths: list[int]) -> None:
    for batch in batches(texts_of(lengths), pad_id=PAD, batch_tokens=24):
        assert batch.input_ids_BL.size <= 24 or len(batch.positions) == 1


@given(Lengths)
def test_padding_is_only_at_the_end(lengths: list[int]) -> None:
    for batch in batches(texts_of(lengths), pad_id=PAD, batch_tokens=64):
        assert (np.diff(batch.attention_mask_BL, axis=1) <= 0).all()
        assert ((batch.input_ids_BL == PAD) == (batch.attention_mask_BL == 0)).all()


@given(Lengths, st.randoms())
def test_the_order_of_the_texts_does_not_change_the_batches(lengths: list[int], random: object) -> None:
    texts = texts_of(lengths)
    shuffled = texts.copy()
    random.shuffle(shuffled)
    first, second = (
        [rows_of(batch) for batch in batches(given_texts, pad_id=PAD, batch_tokens=64)]
        for given_texts in (texts, shuffled)
    )
    assert first == second


def test_texts_of_mixed_lengths_need_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(5, 200, size=200).tolist()
    made = list(batches(texts_of(lengths), pad_id=PAD, batch_tokens=512))
    padding = sum(int((batch.attention_mask_BL == 0).sum()) for batch in made)
    assert padding / sum(batch.input_ids_BL.size for batch in made) < 0.05


@pytest.mark.parametrize("lengths", [[], [7]])
def test_zero_texts_and_one_text_are_batched_like_others(lengths: list[int]) -> None:
    assert len(list(batches(texts_of(lengths), pad_id=PAD, batch_tokens=64))) == len(lengths)
