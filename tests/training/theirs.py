"""Hugging Face's `Trainer` on rows in memory, for tests that compare it with our training loop."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PrinterCallback, Trainer, TrainingArguments

from clozeline.encoder.model import EncoderModel
from clozeline.language.objectives import TargetBatch


def trainer(model: nn.Module, rows: Sequence[Any], folder: Path, collator: Any = None, **arguments: Any) -> Trainer:
    """Return a trainer that trains and evaluates on `rows`; `arguments` are those of `TrainingArguments`."""
    settings: dict[str, Any] = {"save_strategy": "no", "seed": 1, **arguments}
    made = Trainer(
        model,
        TrainingArguments(
            output_dir=str(folder),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **settings,
        ),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=collator,
    )
    made.remove_callback(PrinterCallback)
    return made


def stock_of(model: Any, folder: Path) -> Any:
    """Return the model as stock transformers opens it, in training mode."""
    folder.mkdir(parents=True)
    model.save(folder)
    return AutoModelForMaskedLM.from_pretrained(folder, local_files_only=True).train()


def ours_of(stock: Any) -> EncoderModel:
    """Return our model with the weights of `stock`, by our names and in our order."""
    return EncoderModel.loaded(stock.config, "mlm", stock.state_dict())[0]


def rows_of(batch: TargetBatch) -> list[dict[str, Tensor]]:
    """Return the rows of `batch` as `Trainer` takes them: labels are -100 except at targets."""
    labels_BL = torch.full_like(batch.input_ids_BL, -100)
    labels_BL.view(-1)[batch.slot_T] = batch.labels_T
    mask_BL = batch.attention_mask_BL
    if mask_BL is None:
        mask_BL = torch.ones_like(batch.input_ids_BL)
    names = ("input_ids", "attention_mask", "labels")
    return [dict(zip(names, row, strict=True)) for row in zip(batch.input_ids_BL, mask_BL, labels_BL, strict=True)]
