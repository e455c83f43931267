"""Claim: batches hold every text once per epoch with little padding, in an order set by seed and epoch."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from clozeline.tasks.rows import TextRows, shuffled_batches, sorted_batches
from clozeline.tasks.task import Task
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer
from clozeline.training.state import Batch
from tests.make.models import SENTENCES

LENGTHS = np.random.default_rng(0).integers(3, 120, size=1000)


@pytest.mark.parametrize("batch_size", [1, 16, 5000])
def test_an_epoch_holds_every_text_once_in_an_order_of_seed_and_epoch_alone(batch_size: int) -> None:
    for batches in (shuffled_batches(LENGTHS, batch_size, seed=1, epoch=0), sorted_batches(LENGTHS, batch_size)):
        assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
        assert max(map(len, batches)) == min(batch_size, 1000)
        assert len(batches) == -(-1000 // batch_size)
    first, again, later, other = (
        shuffled_batches(LENGTHS, batch_size, seed, epoch) for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0))
    )
    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in again]
    if batch_size == 16:
        for different in (later, other):
            assert np.concatenate(different).tolist() != np.concatenate(first).tolist()
        longest = [LENGTHS[batch].max() for batch in first]
        num_slots = sum(len(batch) * most for batch, most in zip(first, longest, strict=True))
        assert num_slots < 1.05 * LENGTHS.sum(), "texts of similar length share a batch"
        assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.4, "batches are not ordered by length"


@pytest.mark.parametrize("most_slots", [1, 40, 500, 10**6])
def test_only_a_single_row_exceeds_the_budget_of_slots(most_slots: int) -> None:
    batches = sorted_batches(LENGTHS, 64, most_slots)
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    for rows_B, after_B in zip(batches, [*batches[1:], None], strict=True):
        assert len(rows_B) == 1 or len(rows_B) * LENGTHS[rows_B].max() <= most_slots
        if after_B is not None and len(rows_B) < 64:
            assert (len(rows_B) + 1) * LENGTHS[after_B].min() > most_slots, "one row more would not have fitted"


def test_the_batch_sequence_can_resume_at_any_batch() -> None:
    def batches(*start: int) -> Iterator[Batch[Any]]:
        task = Mock(length_T=LENGTHS, params=Mock(batch_size=300), inputs=Mock(seed=1), num_targets=len)
        task.batch = lambda rows_B, epoch: rows_B
        return Task.batches_from(task, *start)

    whole = list(islice(batches(0, 0), 12))
    assert [(batch.epoch, batch.index) for batch in whole] == [divmod(number, 4) for number in range(12)]
    assert all(batch.num_tokens == LENGTHS[batch.inputs].sum() for batch in whole)
    for start in (3, 4, 9):
        later = islice(batches(whole[start].epoch, whole[start].index), 12 - start)
        assert [batch.inputs.tolist() for batch in later] == [batch.inputs.tolist() for batch in whole[start:]]


@pytest.fixture
def opened(small_encoder: Path) -> OpenTokenizer:
    return OpenTokenizer.open(small_encoder)


ODD = ["\x07 " * 40 + "the model reads", "the \x07 " * 40, "the " * 9 + "\n\t model  " * 30, "x" * 300 + " the" * 30]


@pytest.mark.parametrize("max_length", [4, 8, 16, 40])
def test_a_long_text_keeps_its_first_tokens_and_is_framed_like_short_ones(
    opened: OpenTokenizer, max_length: int
) -> None:
    draw, words = np.random.default_rng(0), " ".join(SENTENCES).split()
    texts = [*ODD, *(" ".join(draw.choice(words, size=3 * number + 1)) for number in range(40))]
    rows = TextRows.encode(texts, opened, max_length)
    opened.tokenizer.no_truncation()
    wholes = [encoding.ids for encoding in opened.tokenizer.encode_batch(texts)]
    expected = [[*ids[: max_length - 1], ids[-1]] if len(ids) > max_length else ids for ids in wholes]
    assert [ids.tolist() for ids in rows.ids_T] == expected
    assert rows.num_truncated == sum(len(ids) > max_length for ids in wholes) > 3
    special = opened.special_ids
    assert all((ids[0], ids[-1]) == (special.cls, special.sep) for ids in rows.ids_T)
    assert special.mask not in TextRows.encode(["[MASK] the"], opened, max_length).ids_T[0]


def test_rows_are_padded_and_pairs_are_framed_as_one_row_whose_longer_text_is_cut(opened: OpenTokenizer) -> None:
    pad_id, sep_id = opened.special_ids.pad, opened.special_ids.sep
    rows = TextRows.encode(["the model", "the", "the the the the"], opened, max_length=16)
    batch = rows.encoded(np.array([1, 0]))
    long, short = (rows.ids_T[place].tolist() for place in (0, 1))
    assert batch.input_ids_BL.tolist() == [[*short, *[pad_id] * (len(long) - len(short))], long]
    assert batch.attention_mask_BL is not None
    assert batch.attention_mask_BL.sum(dim=1).tolist() == [len(short), len(long)]
    assert rows.encoded(np.array([2])).attention_mask_BL is None
    rows = TextRows.encode(["the", "the"], opened, max_length=12, seconds=["model", "the " * 30])
    assert (rows.num_truncated, rows.length_T[1]) == (1, 12)
    assert [ids.tolist().count(sep_id) for ids in rows.ids_T] == [2, 2]
    types_BL = rows.encoded(np.array([0, 1]), with_types=True).token_type_ids_BL
    assert types_BL is not None
    first_sep = rows.ids_T[1].tolist().index(sep_id)
    assert types_BL[1].tolist() == [0] * (first_sep + 1) + [1] * (11 - first_sep)
    assert rows.encoded(np.array([0, 1])).token_type_ids_BL is None


def test_a_window_is_a_random_stretch_of_a_long_text_and_depends_on_its_row_and_not_on_the_batch() -> None:
    long, short = np.array([1, *range(10, 90), 2]), np.array([1, 7, 8, 2])
    rows, starts = TextRows((long, short, *[long] * 8), pad_id=0, num_truncated=0), set()
    for epoch in range(2000):
        window, whole = rows.windows(np.array([0, 1]), 12, 0, epoch).ids_T
        assert (len(window), window[0], window[-1], whole.tolist()) == (12, 1, 2, short.tolist())
        assert np.diff(window[1:-1]).tolist() == [1] * 9
        starts.add(int(window[1]))
    assert (min(starts), max(starts), len(starts)) == (10, 80, 71)
    together = rows.windows(np.arange(2, 10), 12, 0, 0).ids_T
    assert len({int(ids[1]) for ids in together}) > 4
    for row in (3, 6):
        assert rows.windows(np.array([row]), 12, 0, 0).ids_T[0].tolist() == together[row - 2].tolist()
