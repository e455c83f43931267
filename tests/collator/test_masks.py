"""Claim: a row's mask does not depend on the process or the batch; only the epoch changes it."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from clozeline.lab.collator import MaskingCollator
from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS
from tests.collator.rows import Rows, collated, labels_of


def test_a_batch_is_padded_and_has_labels_where_there_is_a_loss(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    batch = MaskingCollator(wordpiece, mask_rate=0.3)(rows[:8])
    longest = max(len(row["input_ids"]) for row in rows[:8])
    assert {name: (values.dtype, tuple(values.shape)) for name, values in batch.items()} == dict.fromkeys(
        ["input_ids", "attention_mask", "labels"], (torch.int64, (8, longest))
    )
    for number, row in enumerate(rows[:8]):
        length = len(row["input_ids"])
        labels, shown = batch["labels"][number].tolist(), batch["input_ids"][number].tolist()
        assert batch["attention_mask"][number].tolist() == [1] * length + [0] * (longest - length)
        assert set(labels[length:]) <= {-100}
        assert set(shown[length:]) <= {wordpiece.pad_token_id}
        for given, label, seen in zip(row["input_ids"], labels, shown, strict=False):
            assert label in (-100, given)
            assert label == given or seen == given
    assert (batch["labels"] != -100).any()


def test_a_row_is_padded_to_a_multiple_and_on_the_tokenizers_side(wordpiece: PreTrainedTokenizerFast) -> None:
    row = {"input_ids": [2, 20, 21, 3]}
    assert MaskingCollator(wordpiece, pad_to_multiple_of=8)([row])["attention_mask"].tolist() == [[1] * 4 + [0] * 4]
    left = PreTrainedTokenizerFast(tokenizer_object=wordpiece.backend_tokenizer, **SPECIAL_TOKENS, padding_side="left")
    batch = MaskingCollator(left, pad_to_multiple_of=8)([row])
    assert batch["attention_mask"].tolist() == [[0] * 4 + [1] * 4]
    assert batch["input_ids"][0, [0, 4, 7]].tolist() == [0, 2, 3]


def test_rows_may_be_lists_arrays_or_tensors_padded_or_not(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    collator, ids = MaskingCollator(wordpiece), rows[0]["input_ids"]
    mask = [1] * len(ids) + [0] * 3
    given: list[dict[str, Any]] = [
        {"input_ids": ids},
        {"input_ids": np.array(ids, dtype=np.int32)},
        {"input_ids": torch.tensor(ids)},
        {"input_ids": [*ids, 0, 0, 0], "attention_mask": mask},
        {"input_ids": torch.tensor([*ids, 0, 0, 0]), "attention_mask": torch.tensor(mask)},
    ]
    assert len({collated(collator, [row])[0] for row in given}) == 1


def test_token_type_ids_are_passed_on(wordpiece: PreTrainedTokenizerFast) -> None:
    rows = [{"input_ids": [2, 20, 3, 21, 3], "token_type_ids": [0, 0, 0, 1, 1]}, {"input_ids": [2, 3]}]
    rows[1]["token_type_ids"] = [0, 0]
    batch = MaskingCollator(wordpiece)(rows)
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 1, 1], [0] * 5]


@pytest.mark.parametrize("settings", [{}, {"unit": "word"}, {"unit": "span", "mean_span_tokens": 3.8}])
def test_masks_do_not_depend_on_batch_size_order_or_workers(
    wordpiece: PreTrainedTokenizerFast, rows: Rows, settings: dict[str, Any]
) -> None:
    """P4, P6: a rank that sees every other row masks it as a single one would."""
    collator = MaskingCollator(wordpiece, seed=3, **settings)
    whole = collated(collator, rows)
    assert collated(collator, rows, batch_size=7) == whole
    assert collated(collator, rows, num_workers=2) == whole
    assert collated(collator, rows[::-1])[::-1] == whole
    assert [collated(collator, rows[rank::2], batch_size=5) for rank in (0, 1)] == [whole[0::2], whole[1::2]]


@pytest.mark.parametrize("loading", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_each_epoch_has_different_masks_for_any_kind_of_worker(
    wordpiece: PreTrainedTokenizerFast, rows: Rows, loading: dict[str, Any]
) -> None:
    """P5: the epoch is in memory shared by all workers, whether they persist or start anew."""
    collator = MaskingCollator(wordpiece, seed=3)
    loader: Any = DataLoader(rows, batch_size=16, collate_fn=collator, **loading)
    found = []
    for epoch in (0, 1, 0):
        collator.set_epoch(epoch)
        found.append([tuple(batch["labels"].flatten().tolist()) for batch in loader])
    assert found[0] == found[2]
    assert not set(found[0]) & set(found[1])
    assert found[:2] == [in_one_process(wordpiece, rows, epoch) for epoch in (0, 1)]


def in_one_process(tokenizer: PreTrainedTokenizerFast, rows: Rows, epoch: int) -> list[tuple[int, ...]]:
    collator = MaskingCollator(tokenizer, seed=3)
    collator.set_epoch(epoch)
    loader: Any = DataLoader(rows, batch_size=16, collate_fn=collator)
    return [tuple(batch["labels"].flatten().tolist()) for batch in loader]


def test_special_tokens_are_never_masked_drawn_or_labelled(wordpiece: PreTrainedTokenizerFast) -> None:
    """P2, P3: this includes special tokens in mid-row, tokens added later, and tokens that the row marks as special."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=wordpiece.backend_tokenizer, **SPECIAL_TOKENS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[NEW]"]})
    tokenizer.add_tokens([AddedToken("[NEWER]", special=True)])
    special = [0, 1, 2, 3, 4, *tokenizer.convert_tokens_to_ids(["[NEW]", "[NEWER]"])]
    draw = np.random.default_rng(0)
    rows = [{"input_ids": draw.integers(0, len(tokenizer), 200).tolist()} for _ in range(100)]
    given = np.array([row["input_ids"] for row in rows])
    batch = MaskingCollator(tokenizer, mask_rate=0.9, mask_share=0.0, random_share=1.0, keep_share=0.0)(rows)
    is_special = np.isin(given, special)
    assert (labels_of(batch)[is_special] == -100).all()
    assert (np.isin(batch["input_ids"].numpy(), special) == is_special).all()
    told = [{**row, "special_tokens_mask": [1, 0] * 100} for row in rows]
    batch = MaskingCollator(tokenizer, mask_rate=0.9)(told)
    assert (labels_of(batch)[:, ::2] == -100).all()
    assert (batch["input_ids"].numpy()[:, ::2] == given[:, ::2]).all()
    MaskingCollator(wordpiece)  # the shared tokenizer is unchanged


def test_the_global_random_states_stay_unchanged(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    """P12."""
    states = (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist())
    MaskingCollator(wordpiece)(rows)
    assert states == (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist())


def test_identical_rows_have_identical_masks_unless_they_are_numbered(wordpiece: PreTrainedTokenizerFast) -> None:
    collator, ids = MaskingCollator(wordpiece, mask_rate=0.5), [2, *range(20, 60), 3]
    one, two = collated(collator, [{"input_ids": ids}] * 2)
    assert one == two
    one, two = collated(collator, [{"input_ids": ids, "document": number} for number in (1, 2)])
    assert one != two


def test_rows_with_the_same_tokens_in_another_order_have_different_masks(wordpiece: PreTrainedTokenizerFast) -> None:
    middle = range(20, 60)
    rows = [{"input_ids": [2, *middle[turn:], *middle[:turn], 3]} for turn in range(40)]
    labels = labels_of(MaskingCollator(wordpiece, mask_rate=0.5)(rows))
    assert len({tuple(row) for row in (labels != -100).tolist()}) == 40


def test_the_mask_rate_reaches_its_final_value_in_the_last_epoch(
    wordpiece: PreTrainedTokenizerFast, rows: Rows
) -> None:
    collator = MaskingCollator(wordpiece, mask_rate=0.4, final_mask_rate=0.1)
    shares = []
    for epoch in range(3):
        collator.set_epoch(epoch, num_epochs=3)
        batch = collator(rows)
        ordinary = batch["attention_mask"].sum() - 2 * len(rows)
        shares.append(float((batch["labels"] != -100).sum() / ordinary))
    assert shares == pytest.approx([0.4, 0.25, 0.1], abs=0.02)


def test_rows_for_evaluation_have_the_same_masks_in_all_epochs(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    collator = MaskingCollator(wordpiece, mask_rate=0.3, final_mask_rate=0.1)
    before = collated(collator, collator.fixed(rows))
    collator.set_epoch(1, num_epochs=2)
    assert collated(collator, collator.fixed(rows), batch_size=7, num_workers=2) == before
    assert collated(collator, rows) != before
    asked, all_tokens = (sum(len(labels) - labels.count(-100) * none for _, labels in before) for none in (1, 0))
    assert asked / (all_tokens - 2 * len(rows)) == pytest.approx(0.3, abs=0.02)
