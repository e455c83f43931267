"""Claim: our collator is right where transformers' own is wrong. Each test shows both."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from clozeline.lab.collator import MaskingCollator
from tests.make.collated_rows import Rows, collated, even_rows, labels_of, sentences, theirs

# The only shares that transformers' collator supports for whole words.
WHOLE_WORDS = {"whole_word_mask": True, "mask_replace_prob": 1.0, "random_replace_prob": 0.0}


def test_their_masks_depend_on_workers_and_batch_size(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    """P4: transformers seeds a stream for each worker, and draws from it in the order of batches."""
    none, two = (collated(theirs(wordpiece, seed=3), rows, num_workers=workers) for workers in (0, 2))
    assert none != two
    assert collated(theirs(wordpiece, seed=3), rows, batch_size=7) != none


def test_their_masks_repeat_in_each_epoch_with_new_workers(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    """P5: a seeded generator that begins anew in each process of each epoch."""
    collator = theirs(wordpiece, seed=3)
    loader: Any = DataLoader(rows, batch_size=16, collate_fn=collator, num_workers=2)
    one, two = ([tuple(batch["labels"].flatten().tolist()) for batch in loader] for _ in range(2))
    assert one == two


def test_theirs_draws_special_tokens_as_replacements(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    """P3: 5 of 110 ids are special; transformers puts them into the text among the others, ours never."""
    settings = {"mask_replace_prob": 0.0, "random_replace_prob": 1.0}
    special = torch.tensor(wordpiece.all_special_ids)

    def share(batch: dict[str, torch.Tensor]) -> float:
        return float(torch.isin(batch["input_ids"][batch["labels"] != -100], special).float().mean())

    assert share(theirs(wordpiece, seed=1, **settings)(rows)) == pytest.approx(5 / 110, abs=0.02)
    assert share(MaskingCollator(wordpiece, mask_share=0.0, random_share=1.0, keep_share=0.0)(rows)) == 0


def fates(given: np.ndarray, batch: Any, mask_id: int) -> list[float]:
    """Shares of the targets that became [MASK], another token, or stayed."""
    is_target = labels_of(batch) != -100
    shown, before = batch["input_ids"].numpy()[is_target], given[is_target]
    is_mask, is_kept = shown == mask_id, shown == before
    return [float(is_mask.mean()), float((~is_mask & ~is_kept).mean()), float(is_kept.mean())]


def test_whole_words_follow_80_10_10_but_theirs_do_not(wordpiece: PreTrainedTokenizerFast) -> None:
    """P8: transformers supports 100/0/0 only, and warns about it."""
    rows = even_rows(wordpiece, 500, 64)
    given = np.array([row["input_ids"] for row in rows])
    ours = fates(given, MaskingCollator(wordpiece, unit="word")(rows), 4)
    assert ours == pytest.approx([0.8, 0.1, 0.1], abs=0.025)
    with pytest.warns(UserWarning, match="Random token replacement is not supported"):
        theirs(wordpiece, whole_word_mask=True)
    assert fates(given, theirs(wordpiece, **WHOLE_WORDS, seed=1)(rows), 4) == [1.0, 0.0, 0.0]


def test_two_ranks_draw_different_masks_but_theirs_draw_the_same(wordpiece: PreTrainedTokenizerFast) -> None:
    """P6: with one seed on all ranks, transformers hides the same places of different rows on each."""
    rows = even_rows(wordpiece, 200, 64)
    ranks = rows[:100], rows[100:]
    is_target = [labels_of(theirs(wordpiece, seed=3)(part)) != -100 for part in ranks]
    assert (is_target[0] == is_target[1]).all()
    is_target = [labels_of(MaskingCollator(wordpiece, seed=3)(part)) != -100 for part in ranks]
    in_both = (is_target[0] & is_target[1]).sum() / is_target[0].sum()
    assert in_both == pytest.approx(0.15, abs=0.04)  # what chance gives


@pytest.mark.slow
def test_byte_level_bpe_words_are_masked_at_the_rate_but_theirs_mask_whole_rows(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    """P9: to transformers, whose words end at a gap between offsets, a row without gaps is one word."""
    rows = even_rows(byte_level, 1000, 64)

    def share_per_row(batch: Any) -> np.ndarray:
        return (labels_of(batch) != -100)[:, 1:-1].mean(axis=1)

    ours, other = (
        share_per_row(collator(rows))
        for collator in (MaskingCollator(byte_level, unit="word"), theirs(byte_level, **WHOLE_WORDS, seed=1))
    )
    assert set(other) == {0.0, 1.0}
    assert other.mean() == pytest.approx(0.15, abs=0.04)
    assert ours.mean() == pytest.approx(0.15, abs=0.01)
    assert ((ours > 0) & (ours < 0.6)).mean() > 0.95


def test_punctuation_is_a_word_of_its_own_but_theirs_joins_it_to_words(wordpiece: PreTrainedTokenizerFast) -> None:
    """P9: `word.` is one word to transformers, so its full stop is always hidden with it."""
    rows = even_rows(wordpiece, 300, 64, after_a_word=". ")

    def hidden_with_the_word_before(batch: Any) -> float:
        given = np.array([row["input_ids"] for row in rows])
        is_target = labels_of(batch) != -100
        at = given[:, 1:] == stop(wordpiece)
        return float(is_target[:, 1:][at & is_target[:, :-1]].mean())

    assert hidden_with_the_word_before(theirs(wordpiece, **WHOLE_WORDS, seed=1)(rows)) == 1.0
    assert hidden_with_the_word_before(MaskingCollator(wordpiece, unit="word")(rows)) < 0.25


def stop(tokenizer: PreTrainedTokenizerFast) -> int:
    return int(tokenizer.convert_tokens_to_ids("."))


def test_whole_words_are_masked_in_rows_of_unequal_length_which_theirs_refuses(
    wordpiece: PreTrainedTokenizerFast,
) -> None:
    """P9."""
    encoded = wordpiece(sentences(200, 2), return_offsets_mapping=True, return_special_tokens_mask=True)
    rows = [{name: encoded[name][row] for name in encoded} for row in range(200)]
    with pytest.raises(ValueError, match="tensor"):
        theirs(wordpiece, **WHOLE_WORDS)(rows)
    labels = labels_of(MaskingCollator(wordpiece, unit="word", mask_rate=0.3)(rows))
    for row, label in zip(rows, labels, strict=True):
        tokens = wordpiece.convert_ids_to_tokens(row["input_ids"])
        for place in range(1, len(tokens)):
            if tokens[place].startswith("##"):
                assert (label[place] == -100) == (label[place - 1] == -100)
