"""Claim: in a `Trainer` of transformers the masks are those of each row and epoch, whatever its workers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast, Trainer, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from clozeline.lab.collator import MaskingCollator
from tests.collator.rows import Rows


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

    long_rows = [row for row in rows if len(row["input_ids"]) > 50][:64]

    def train(resume: str | None = None, evaluate: Any = None, **arguments: Any) -> list[Any]:
        shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
        torch.manual_seed(0)
        model = Recorder(BertConfig(vocab_size=len(wordpiece), **shape))
        model.seen = []
        collator = MaskingCollator(wordpiece, seed=3)
        defaults = {"num_train_epochs": 2, "per_device_train_batch_size": 16, "save_strategy": "no", "use_cpu": True}
        settings = TrainingArguments(str(tmp_path), report_to=[], disable_tqdm=True, **defaults | arguments)
        callbacks = [collator.each_epoch()]
        sets = {"train_dataset": long_rows, "eval_dataset": evaluate}
        trainer = Trainer(model, settings, data_collator=collator, callbacks=callbacks, **sets)
        trainer.train(resume_from_checkpoint=None if resume is None else str(tmp_path / resume))
        return model.seen

    return train


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_masks_in_a_trainer_do_not_depend_on_workers_and_change_with_the_epoch(
    trained: Callable[..., list[Any]],
) -> None:
    """P4, P5."""
    alone = trained()
    assert trained(dataloader_num_workers=2) == alone
    assert trained(dataloader_num_workers=2, dataloader_persistent_workers=True) == alone
    assert len(alone) == 128
    assert not set(alone[:64]) & set(alone[64:])


@pytest.mark.slow
def test_a_trainer_evaluates_each_epoch_on_the_same_masks(
    trained: Callable[..., list[Any]], wordpiece: PreTrainedTokenizerFast, rows: Rows
) -> None:
    """P32."""
    held_out = MaskingCollator(wordpiece).fixed(rows[:16])
    seen = trained(evaluate={"one": held_out, "two": held_out}, eval_strategy="epoch", per_device_eval_batch_size=16)
    evaluated = [seen[64:80], seen[80:96], seen[160:176], seen[176:192]]
    assert len(seen) == 192
    assert evaluated == [evaluated[0]] * 4


def test_fixed_rows_can_be_grouped_by_length(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    """As `TrainingArguments(group_by_length=True)` does with what it evaluates on."""
    held_out = MaskingCollator(wordpiece).fixed(rows[:16])
    sampler = LengthGroupedSampler(4, dataset=held_out, model_input_name="input_ids")
    assert sampler.lengths == [len(row["input_ids"]) for row in rows[:16]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_a_resumed_trainer_continues_with_the_masks_of_its_epoch(trained: Callable[..., list[Any]]) -> None:
    """P4: killed in the second epoch, resumed from step 6 of 8."""
    whole = trained(save_strategy="steps", save_steps=6)
    assert trained(resume="checkpoint-6", save_strategy="no") == whole[6 * 16 :]
