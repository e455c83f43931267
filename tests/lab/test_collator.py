"""Claim: a row's mask does not depend on the process or the batch; only the epoch changes it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast, Trainer, TrainingArguments

from clozeline.lab.collator import MaskingCollator
from clozeline.system.errors import DataError, ParamsError
from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS
from tests.make.collated_rows import Rows, collated, labels_of, pairs_of


def test_a_batch_is_padded_and_has_labels_where_there_is_a_loss(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    batch = MaskingCollator(wordpiece, mask_rate=0.3)(rows[:8])
    longest = max(len(row["input_ids"]) for row in rows[:8])
    assert {*batch} == {"input_ids", "attention_mask", "labels"}
    assert all(values.dtype == torch.int64 and values.shape == (8, longest) for values in batch.values())
    for row, seen, mask, labels in zip(rows[:8], *(values.tolist() for values in batch.values()), strict=True):
        given = row["input_ids"]
        padding = longest - len(given)
        assert mask == [1] * len(given) + [0] * padding
        assert labels[len(given) :] == [-100] * padding
        assert seen[len(given) :] == [wordpiece.pad_token_id] * padding
        for before, label, after in zip(given, labels, seen, strict=False):
            assert label == before or (label == -100 and after == before)
    assert (batch["labels"] != -100).any()
    left = PreTrainedTokenizerFast(tokenizer_object=wordpiece.backend_tokenizer, **SPECIAL_TOKENS, padding_side="left")
    batch = MaskingCollator(left, pad_to_multiple_of=8)([{"input_ids": [2, 20, 21, 3]}])
    assert batch["attention_mask"].tolist() == [[0] * 4 + [1] * 4]
    assert batch["input_ids"][0, [0, 4, 7]].tolist() == [0, 2, 3]
    ids = rows[0]["input_ids"]
    padded, kept = [*ids, 0, 0, 0], [1] * len(ids) + [0] * 3
    alike: list[dict[str, Any]] = [{"input_ids": kind(ids)} for kind in (list, np.array, torch.tensor)]
    alike += [{"input_ids": kind(padded), "attention_mask": kind(kept)} for kind in (list, torch.tensor)]
    assert len({collated(MaskingCollator(wordpiece), [row])[0] for row in alike}) == 1


@pytest.mark.parametrize("settings", [{}, {"unit": "word"}, {"unit": "span", "mean_span_tokens": 3.8}])
def test_masks_do_not_depend_on_batch_size_order_or_workers(wordpiece, rows: Rows, settings: dict[str, Any]) -> None:
    """P4, P6: a rank that sees every other row masks it as a single one would."""
    collator = MaskingCollator(wordpiece, seed=3, **settings)
    whole = collated(collator, rows)
    assert collated(collator, rows, batch_size=7) == whole
    assert collated(collator, rows, num_workers=2) == whole
    assert collated(collator, rows[::-1])[::-1] == whole
    assert [collated(collator, rows[rank::2], batch_size=5) for rank in (0, 1)] == [whole[0::2], whole[1::2]]


def test_each_epoch_has_different_masks_and_those_for_evaluation_stay(wordpiece, rows: Rows) -> None:
    """P5, P32: the epoch is in memory shared by all workers, whether they persist or start anew."""
    collator = MaskingCollator(wordpiece, seed=3, mask_rate=0.4, final_mask_rate=0.1)
    held_out = collator.fixed(rows[:50])
    found = []
    for loading in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        loader: Any = DataLoader(rows, batch_size=16, collate_fn=collator, **loading)  # type: ignore[arg-type]
        for epoch in (0, 1):
            collator.set_epoch(epoch, num_epochs=2)
            found.append([tuple(batch["labels"].flatten().tolist()) for batch in loader])
            found.append(collated(collator, held_out, num_workers=2))
    assert found[:4] == found[4:8] == found[8:]
    assert not set(found[0]) & set(found[2])
    assert found[1] == found[3]
    shares = [np.mean([label != -100 for labels in found[epoch] for label in labels]) for epoch in (0, 2)]
    assert shares[1] / shares[0] == pytest.approx(1 / 4, abs=0.03), "from 0.4 to 0.1"


def test_special_tokens_are_never_masked_drawn_or_labelled(wordpiece: PreTrainedTokenizerFast) -> None:
    """P2, P3: this includes special tokens in mid-row, tokens added later, and tokens that the row marks as special."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=wordpiece.backend_tokenizer, **SPECIAL_TOKENS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[NEW]"]})
    tokenizer.add_tokens([AddedToken("[NEWER]", special=True)])
    special = [0, 1, 2, 3, 4, *tokenizer.convert_tokens_to_ids(["[NEW]", "[NEWER]"])]
    given = np.random.default_rng(0).integers(0, len(tokenizer), (100, 200))
    rows = [{"input_ids": row.tolist()} for row in given]
    batch = MaskingCollator(tokenizer, mask_rate=0.9, mask_share=0.0, random_share=1.0, keep_share=0.0)(rows)
    is_special = np.isin(given, special)
    assert (labels_of(batch)[is_special] == -100).all()
    assert (np.isin(batch["input_ids"].numpy(), special) == is_special).all()
    batch = MaskingCollator(tokenizer, mask_rate=0.9)([{**row, "special_tokens_mask": [1, 0] * 100} for row in rows])
    assert (labels_of(batch)[:, ::2] == -100).all()
    assert (batch["input_ids"].numpy()[:, ::2] == given[:, ::2]).all()
    MaskingCollator(wordpiece)  # the shared tokenizer is unchanged


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mask_rate": 15}, "mask_rate: Input should be less than 1"),
        ({"protected_tokens": ("kato!",)}, "kato!"),
        ({"seed": 2**63}, str(2**63)),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(wordpiece, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ParamsError) as caught:
        MaskingCollator(wordpiece, **settings)
    assert told in str(caught.value)
    maskless = PreTrainedTokenizerFast(tokenizer_object=wordpiece.backend_tokenizer, pad_token="[PAD]")
    with pytest.raises(ParamsError, match=r"(?s)without mask_token.*resize_token_embeddings"):  # P10
        MaskingCollator(maskless)


@pytest.mark.parametrize(
    ("rows", "given"),
    [
        ([], "no row"),
        ([{"ids": [2, 3]}], "keys ids"),
        ([{"input_ids": [[2, 3]]}], "of shape (1, 2)"),
        ([{"input_ids": [2, 999]}], "id 999"),
        ([{"input_ids": ["two", "three"]}], "'two'"),
        ([{"input_ids": [2, 3], "attention_mask": [1]}], "`attention_mask` of length 1, `input_ids` of length 2"),
        ([{"input_ids": [2, 3], "document": 2**70}], "`document` of the rows"),
        ([{"input_ids": [2, 3], "document": 1}, {"input_ids": [2, 3]}], "document"),
    ],
)
def test_invalid_rows_are_refused(wordpiece: PreTrainedTokenizerFast, rows: list[dict[str, Any]], given: str) -> None:
    with pytest.raises(DataError) as caught:
        MaskingCollator(wordpiece)(rows)
    assert given in caught.value.problem


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_masks_in_a_trainer_depend_on_the_epoch_alone_and_a_resumed_one_continues_with_them(
    wordpiece: PreTrainedTokenizerFast, rows: Rows, tmp_path: Path
) -> None:
    """P4, P5: killed in the second epoch, resumed from step 6 of 8."""
    long_rows = [row for row in rows if len(row["input_ids"]) > 50][:64]
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}

    def trained(resume: str | None = None, **arguments: Any) -> list[Any]:
        """Return the rows that the model of a real `Trainer` gets, one epoch after the other."""
        torch.manual_seed(0)
        model, seen = BertForMaskedLM(BertConfig(vocab_size=len(wordpiece), **shape)), []
        model.register_forward_pre_hook(lambda _, __, batch: seen.extend(pairs_of(batch)), with_kwargs=True)
        collator = MaskingCollator(wordpiece, seed=3)
        defaults = {"num_train_epochs": 2, "per_device_train_batch_size": 16, "save_strategy": "no", "use_cpu": True}
        settings = TrainingArguments(str(tmp_path), report_to=[], disable_tqdm=True, **defaults | arguments)
        hearing = {"data_collator": collator, "callbacks": [collator.each_epoch()]}
        Trainer(model, settings, train_dataset=long_rows, **hearing).train(resume and str(tmp_path / resume))
        return seen

    alone = trained(save_strategy="steps", save_steps=6)
    assert trained(resume="checkpoint-6") == alone[6 * 16 :]
    assert trained(dataloader_num_workers=2, dataloader_persistent_workers=True) == alone
    assert len(alone) == 128
    assert not set(alone[:64]) & set(alone[64:])
