"""The other side: Hugging Face `Trainer`, set up as transformers' `examples/pytorch/language-modeling/run_mlm.py` does.

A reimplementation of its documented behaviour: texts are tokenized by `datasets.map`; with `--line_by_line` each text
is a row, truncated and padded; by default all texts are joined and cut to full rows, and the rest of a map batch is
dropped; `DataCollatorForLanguageModeling` masks; everything else is `TrainingArguments`.

Shapes: B rows, L length of a row.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import torch
import transformers
from transformers import PreTrainedTokenizerFast

_TEXT = "text"


def open_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def line_by_line(texts: datasets.Dataset, tokenizer: PreTrainedTokenizerFast, max_length: int) -> datasets.Dataset:
    """`--line_by_line --pad_to_max_length`: one row per text."""

    def tokenize(examples: dict[str, list[str]]) -> Any:
        return tokenizer(
            [text for text in examples[_TEXT] if text and not text.isspace()],
            padding="max_length",
            truncation=True,
            max_length=max_length,
            return_special_tokens_mask=True,
        )

    return texts.map(tokenize, batched=True, remove_columns=texts.column_names)


def grouped(
    texts: datasets.Dataset, tokenizer: PreTrainedTokenizerFast, max_length: int, num_processes: int | None = None
) -> datasets.Dataset:
    """The default: texts, each with its [CLS] and [SEP], joined and cut into full rows of `max_length`."""

    def tokenize(examples: dict[str, list[str]]) -> Any:
        return tokenizer(examples[_TEXT], return_special_tokens_mask=True)

    def group(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {key: list(chain(*rows)) for key, rows in examples.items()}
        usable = len(joined["input_ids"]) // max_length * max_length
        starts = range(0, usable, max_length)
        return {key: [values[start : start + max_length] for start in starts] for key, values in joined.items()}

    tokenized = texts.map(tokenize, batched=True, remove_columns=texts.column_names, num_proc=num_processes)
    return tokenized.map(group, batched=True, num_proc=num_processes)


def as_dataset(texts: Sequence[str]) -> datasets.Dataset:
    datasets.disable_progress_bars()
    return datasets.Dataset.from_dict({_TEXT: list(texts)})


@dataclass
class Meter(transformers.TrainerCallback):
    """Real tokens and time of the steps after the warm-up."""

    num_warmup_steps: int
    num_tokens: int = 0
    started: float = 0.0
    ended: float = 0.0

    def on_train_begin(self, args: transformers.TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        self.num_tokens, self.started = 0, time.perf_counter()

    def on_step_end(self, args: transformers.TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        self.ended = time.perf_counter()
        if state.global_step == self.num_warmup_steps:
            self.num_tokens, self.started = 0, self.ended

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


class MeteredTrainer(transformers.Trainer):
    """`Trainer`, and a count of the tokens that are not padding."""

    def __init__(self, *, meter: Meter, **settings: Any) -> None:
        super().__init__(callbacks=[meter], **settings)
        self._meter = meter

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *rest: Any, **named: Any) -> torch.Tensor:
        self._meter.num_tokens += int(inputs["attention_mask"].sum())
        return super().training_step(model, inputs, *rest, **named)


def train(
    model: transformers.PreTrainedModel,
    rows: datasets.Dataset,
    tokenizer: PreTrainedTokenizerFast,
    *,
    mask_rate: float,
    num_warmup_steps: int,
    **arguments: Any,
) -> Meter:
    """Train in place; the measurement excludes the first `num_warmup_steps`.

    Args:
        model: any masked language model of transformers.
        rows: from `line_by_line` or `grouped`.
        tokenizer: the rows' own.
        mask_rate: `--mlm_probability`.
        num_warmup_steps: steps before the clock starts (not those of the learning rate).
        arguments: of `TrainingArguments`; run_mlm passes on what the user gives it, all else is its default.
    """
    meter = Meter(num_warmup_steps)
    with TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            output_dir=folder,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
            **arguments,
        )
        trainer = MeteredTrainer(
            meter=meter,
            model=model,
            args=settings,
            train_dataset=rows,
            processing_class=tokenizer,
            data_collator=transformers.DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=mask_rate),
        )
        trainer.remove_callback(transformers.PrinterCallback)  # stdout is for the line
        trainer.train()
    return meter
