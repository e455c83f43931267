"""Claim: a row's mask does not depend on the process or the batch; only the epoch changes it."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast, Trainer, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from clozeline.lab.collator import MaskingCollator
from clozeline.params.pretraining import MaskingParams
from clozeline.system.errors import DataError, ParamsError
from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS
from tests.make.collated_rows import Rows, collated, labels_of


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


def test_a_row_is_padded_to_a_multiple_and_on_the_tokenizers_side(wordpiece: PreTrainedTokenizerFast) -> None:
    row = {"input_ids": [2, 20, 21, 3], "token_type_ids": [0, 0, 1, 1]}
    batch = MaskingCollator(wordpiece, pad_to_multiple_of=8)([row])
    assert batch["attention_mask"].tolist() == [[1] * 4 + [0] * 4]
    assert batch["token_type_ids"].tolist() == [[0, 0, 1, 1] + [0] * 4]
    left = PreTrainedTokenizerFast(tokenizer_object=wordpiece.backend_tokenizer, **SPECIAL_TOKENS, padding_side="left")
    batch = MaskingCollator(left, pad_to_multiple_of=8)([row])
    assert batch["attention_mask"].tolist() == [[0] * 4 + [1] * 4]
    assert batch["input_ids"][0, [0, 4, 7]].tolist() == [0, 2, 3]


def test_rows_may_be_lists_arrays_or_tensors_padded_or_not(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    ids = rows[0]["input_ids"]
    padded, mask = [*ids, 0, 0, 0], [1] * len(ids) + [0] * 3
    given: list[dict[str, Any]] = [{"input_ids": kind(ids)} for kind in (list, np.array, torch.tensor)]
    given += [{"input_ids": kind(padded), "attention_mask": kind(mask)} for kind in (list, torch.tensor)]
    assert len({collated(MaskingCollator(wordpiece), [row])[0] for row in given}) == 1


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

    def masks(*epochs: int, **loading: Any) -> list[list[tuple[int, ...]]]:
        collator = MaskingCollator(wordpiece, seed=3)
        loader: Any = DataLoader(rows, batch_size=16, collate_fn=collator, **loading)  # type: ignore[arg-type]
        found = []
        for epoch in epochs:
            collator.set_epoch(epoch)
            found.append([tuple(batch["labels"].flatten().tolist()) for batch in loader])
        return found

    first, second, again = masks(0, 1, 0, **loading)
    assert first == again
    assert not set(first) & set(second)
    assert [first, second] == masks(0, 1)


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


def test_the_global_random_states_stay_unchanged(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    """P12."""

    def states() -> tuple[Any, ...]:
        return random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()

    before = states()
    MaskingCollator(wordpiece)(rows)
    assert states() == before


def test_rows_of_other_order_or_number_have_other_masks_and_identical_ones_the_same(
    wordpiece: PreTrainedTokenizerFast,
) -> None:
    collator, middle = MaskingCollator(wordpiece, mask_rate=0.5), range(20, 60)
    one, two = collated(collator, [{"input_ids": [2, *middle, 3]}] * 2)
    assert one == two
    one, two = collated(collator, [{"input_ids": [2, *middle, 3], "document": number} for number in (1, 2)])
    assert one != two
    turned = [{"input_ids": [2, *middle[turn:], *middle[:turn], 3]} for turn in range(40)]
    assert len({tuple(row) for row in (labels_of(collator(turned)) != -100).tolist()}) == 40


def share_of_targets(found: list[tuple[Any, Any]]) -> float:
    """Return the share of the ordinary tokens of collated rows that are to be predicted."""
    num_targets = sum(len(labels) - labels.count(-100) for _, labels in found)
    return num_targets / sum(len(labels) - 2 for _, labels in found)


def test_the_mask_rate_reaches_its_final_value_in_the_last_epoch(
    wordpiece: PreTrainedTokenizerFast, rows: Rows
) -> None:
    collator = MaskingCollator(wordpiece, mask_rate=0.4, final_mask_rate=0.1)
    shares = []
    for epoch in range(3):
        collator.set_epoch(epoch, num_epochs=3)
        shares.append(share_of_targets(collated(collator, rows)))
    assert shares == pytest.approx([0.4, 0.25, 0.1], abs=0.02)


def test_rows_for_evaluation_have_the_same_masks_in_all_epochs(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    collator = MaskingCollator(wordpiece, mask_rate=0.3, final_mask_rate=0.1)
    before = collated(collator, collator.fixed(rows))
    collator.set_epoch(1, num_epochs=2)
    assert collated(collator, collator.fixed(rows), batch_size=7, num_workers=2) == before
    assert collated(collator, rows) != before
    assert share_of_targets(before) == pytest.approx(0.3, abs=0.02)


MASKING = MaskingParams(
    unit="word", mask_rate=0.4, final_mask_rate=None, mask_share=0.8, random_share=0.1, keep_share=0.1,
    mean_span_tokens=None, protected_tokens=("to",),
)  # fmt: skip


def test_settings_have_the_names_of_params_yaml(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    settings: dict[str, Any] = {"unit": "word", "mask_rate": 0.4, "protected_tokens": ("to",)}
    assert collated(MaskingCollator(wordpiece, MASKING), rows) == collated(MaskingCollator(wordpiece, **settings), rows)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mask_rate": 15}, "mask_rate: Input should be less than 1"),
        ({"mask_rat": 0.1}, "mask_rat: Extra inputs are not permitted"),
        ({"unit": "span"}, "set `mean_span_tokens`"),
        ({"protected_tokens": ("kato!",)}, "kato!"),
        ({"seed": -1}, "-1"),
        ({"seed": 2**63}, str(2**63)),
        ({"masking": MASKING, "mask_rate": 0.3}, "mask_rate"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(
    wordpiece: PreTrainedTokenizerFast, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ParamsError) as caught:
        MaskingCollator(wordpiece, **settings)
    assert told in str(caught.value)


def test_a_tokenizer_without_a_mask_is_refused_with_what_to_do(wordpiece: PreTrainedTokenizerFast) -> None:
    """P10."""
    maskless = PreTrainedTokenizerFast(tokenizer_object=wordpiece.backend_tokenizer, pad_token="[PAD]")
    with pytest.raises(ParamsError, match=r"(?s)without mask_token.*resize_token_embeddings"):
        MaskingCollator(maskless)


WHOLE = {"input_ids": [2, 20, 3], "document": 1, "special_tokens_mask": [1, 0, 1], "token_type_ids": [0, 0, 0]}


@pytest.mark.parametrize(
    ("rows", "given"),
    [
        ([], "no row"),
        ([{"ids": [2, 3]}], "keys ids"),
        ([{"input_ids": [[2, 3]]}], "of shape (1, 2)"),
        ([{"input_ids": [2, 999]}], "id 999"),
        ([{"input_ids": [2, -100, 3]}], "id -100"),
        ([{"input_ids": ["two", "three"]}], "'two'"),
        ([{"input_ids": [[2], [2, 3]]}], "`input_ids`: "),
        ([WHOLE | {"attention_mask": [1, 1]}], "`attention_mask` of length 2, `input_ids` of length 3"),
        ([WHOLE | {"document": "first"}], "`document` of the rows: ['first']"),
        ([WHOLE | {"document": 2**70}], "`document` of the rows"),
        ([WHOLE, {"input_ids": [2, 3], "special_tokens_mask": [1, 1], "token_type_ids": [0, 0]}], "document"),
        ([WHOLE, {"input_ids": [2, 3]}], "special_tokens_mask"),
    ],
)
def test_invalid_rows_are_refused(wordpiece: PreTrainedTokenizerFast, rows: list[dict[str, Any]], given: str) -> None:
    with pytest.raises(DataError) as caught:
        MaskingCollator(wordpiece)(rows)
    assert given in caught.value.problem


class Recorder(BertForMaskedLM):
    """Model that records the ids and labels of each row that it gets."""

    seen: list[tuple[tuple[int, ...], tuple[int, ...]]]

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **others: Any) -> Any:
        for ids, label, kept in zip(input_ids, labels, attention_mask.bool(), strict=True):
            self.seen.append((tuple(ids[kept].tolist()), tuple(label[kept].tolist())))
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


@pytest.fixture
def trained(wordpiece: PreTrainedTokenizerFast, rows: Rows, tmp_path: Path) -> Callable[..., list[Any]]:
    """Function that runs a real `Trainer` and returns the rows that its model gets, one epoch after the other."""

    def train(resume: str | None = None, evaluate: Any = None, **arguments: Any) -> list[Any]:
        shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
        torch.manual_seed(0)
        model = Recorder(BertConfig(vocab_size=len(wordpiece), **shape))
        model.seen = []
        collator = MaskingCollator(wordpiece, seed=3)
        defaults = {"num_train_epochs": 2, "per_device_train_batch_size": 16, "save_strategy": "no", "use_cpu": True}
        settings = TrainingArguments(str(tmp_path), report_to=[], disable_tqdm=True, **defaults | arguments)
        long_rows = [row for row in rows if len(row["input_ids"]) > 50][:64]
        sets = {"train_dataset": long_rows, "eval_dataset": evaluate}
        trainer = Trainer(model, settings, data_collator=collator, callbacks=[collator.each_epoch()], **sets)
        trainer.train(resume_from_checkpoint=resume and str(tmp_path / resume))
        return model.seen

    return train


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_masks_in_a_trainer_depend_on_the_epoch_alone_and_a_resumed_one_continues_with_them(
    trained: Callable[..., list[Any]],
) -> None:
    """P4, P5: killed in the second epoch, resumed from step 6 of 8."""
    alone = trained(save_strategy="steps", save_steps=6)
    assert trained(resume="checkpoint-6") == alone[6 * 16 :]
    assert trained(dataloader_num_workers=2) == alone
    assert trained(dataloader_num_workers=2, dataloader_persistent_workers=True) == alone
    assert len(alone) == 128
    assert not set(alone[:64]) & set(alone[64:])


@pytest.mark.slow
def test_a_trainer_evaluates_each_epoch_on_the_same_masks(
    trained: Callable[..., list[Any]], wordpiece: PreTrainedTokenizerFast, rows: Rows
) -> None:
    """P32. The rows can be grouped by length, as `TrainingArguments(group_by_length=True)` does."""
    held_out = MaskingCollator(wordpiece).fixed(rows[:16])
    sampler = LengthGroupedSampler(4, dataset=held_out, model_input_name="input_ids")
    assert sampler.lengths == [len(row["input_ids"]) for row in rows[:16]]
    seen = trained(evaluate={"one": held_out, "two": held_out}, eval_strategy="epoch", per_device_eval_batch_size=16)
    evaluated = [seen[64:80], seen[80:96], seen[160:176], seen[176:192]]
    assert len(seen) == 192
    assert evaluated == [evaluated[0]] * 4
