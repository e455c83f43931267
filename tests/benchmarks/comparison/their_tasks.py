"""What transformers' `run_glue.py`, `run_ner.py` and `run_qa.py` have in common: data, `Trainer`, what is saved."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import torch
import transformers
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast, PrinterCallback, Trainer

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Recipe:
    """Settings that both sides share; all others are the defaults of each side."""

    epochs: int
    batch_size: int
    learning_rate: float
    max_length: int
    seed: int


@dataclass(frozen=True)
class Script:
    """One run of theirs, `--do_train --do_eval --do_predict`: each script passes its own part to `predict`."""

    parts: datasets.DatasetDict
    tokenizer: PreTrainedTokenizerFast
    recipe: Recipe
    folder: Path

    def mapped(self, part: str, function: Callable[..., Any]) -> datasets.Dataset:
        rows = self.parts[part]
        return rows.map(function, batched=True, remove_columns=rows.column_names)

    def predict(
        self, model: PreTrainedModel, collator: Callable[..., Any], rows: Mapping[str, datasets.Dataset]
    ) -> Any:
        """Train, save, evaluate on the validation part; return the model's predictions for the test part.

        Args:
            model: model with a head.
            collator: makes batches of rows.
            rows: rows of each part; `Trainer` drops columns that are no inputs of the model.
        """
        arguments = transformers.TrainingArguments(
            output_dir=str(self.folder / "out"),
            num_train_epochs=self.recipe.epochs,
            per_device_train_batch_size=self.recipe.batch_size,
            learning_rate=self.recipe.learning_rate,
            seed=self.recipe.seed,
            dataloader_pin_memory=torch.cuda.is_available(),  # without a GPU it does nothing but warn
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=rows["train"],
            eval_dataset=rows["validation"],
            processing_class=self.tokenizer,
            data_collator=collator,
        )
        trainer.remove_callback(PrinterCallback)  # stdout is for the line
        trainer.train()
        trainer.save_model()
        trainer.evaluate()
        return trainer.predict(rows["test"]).predictions


@contextmanager
def opened(parts: Path, weights: Path, recipe: Recipe) -> Iterator[Script]:
    """Read the files of `--train_file` and the like; nothing is left of an earlier run."""
    datasets.disable_progress_bars()
    transformers.set_seed(recipe.seed)
    with TemporaryDirectory() as folder:
        files = {part: str(parts / f"{part}.jsonl") for part in PARTS}
        read = datasets.load_dataset("json", data_files=files, cache_dir=f"{folder}/cache")
        tokenizer = AutoTokenizer.from_pretrained(weights, local_files_only=True)
        yield Script(read, tokenizer, recipe, Path(folder))
