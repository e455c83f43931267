"""What transformers' `run_glue.py`, `run_ner.py` and `run_qa.py` (examples/pytorch) do, as documented.

Shapes: W windows, L length of a window.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
import torch
import transformers

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
    tokenizer: transformers.PreTrainedTokenizerFast
    recipe: Recipe
    folder: Path

    def mapped(self, part: str, function: Callable[..., Any]) -> datasets.Dataset:
        rows = self.parts[part]
        return rows.map(function, batched=True, remove_columns=rows.column_names)

    def predict(
        self, model: transformers.PreTrainedModel, collator: Callable[..., Any], rows: Mapping[str, datasets.Dataset]
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
        trainer = transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=rows["train"],
            eval_dataset=rows["validation"],
            processing_class=self.tokenizer,
            data_collator=collator,
        )
        trainer.remove_callback(transformers.PrinterCallback)  # stdout is for the line
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
        tokenizer = transformers.AutoTokenizer.from_pretrained(weights, local_files_only=True)
        yield Script(read, tokenizer, recipe, Path(folder))


def classified(parts: Path, weights: Path, recipe: Recipe) -> list[str]:
    """Return a label for each text of the test part, as run_glue.py: `default_data_collator`, and rows padded to
    `--max_seq_length` (128), because `--pad_to_max_length` is its default.
    """
    with opened(parts, weights, recipe) as script:
        labels = sorted(script.parts["train"].unique("label"))
        place = {label: number for number, label in enumerate(labels)}
        model = transformers.AutoModelForSequenceClassification.from_pretrained(weights, num_labels=len(labels))

        def tokenize(examples: dict[str, list[str]]) -> Any:
            rows = script.tokenizer(
                examples["text"], padding="max_length", max_length=recipe.max_length, truncation=True
            )
            return rows | {"label": [place[label] for label in examples["label"]]}

        rows = {part: script.mapped(part, tokenize) for part in PARTS}
        logits_TC = script.predict(model, transformers.default_data_collator, rows)
        return [labels[number] for number in logits_TC.argmax(axis=1).tolist()]


_NO_TARGET = -100
_OUTSIDE = "O"


def tagged(parts: Path, weights: Path, recipe: Recipe) -> list[list[str]]:
    """Return a tag for each word of the test part, as run_ner.py: words are tokenized as they are, the first token
    of each is its target, and rows are padded to the longest of a batch. A word that was cut off is tagged as outside.
    """
    with opened(parts, weights, recipe) as script:
        tags = sorted({tag for tags in script.parts["train"]["ner_tags"] for tag in tags})
        place = {tag: number for number, tag in enumerate(tags)}
        model = transformers.AutoModelForTokenClassification.from_pretrained(weights, num_labels=len(tags))

        def tokenize(examples: dict[str, list[list[str]]]) -> Any:
            rows = script.tokenizer(
                examples["tokens"], truncation=True, max_length=recipe.max_length, is_split_into_words=True
            )
            firsts = [_first_tokens(rows.word_ids(number)) for number in range(len(examples["tokens"]))]
            labels = [[_NO_TARGET] * len(ids) for ids in rows["input_ids"]]
            for of_row, first, words in zip(labels, firsts, examples["ner_tags"], strict=True):
                for token, word in first.items():
                    of_row[token] = place.get(words[word], _NO_TARGET)
            return rows | {"labels": labels, "first_tokens": [list(first.items()) for first in firsts]}

        rows = {part: script.mapped(part, tokenize) for part in PARTS}
        first_tokens, sentences = list(rows["test"]["first_tokens"]), list(script.parts["test"]["tokens"])
        collator = transformers.DataCollatorForTokenClassification(script.tokenizer)
        said_SL = script.predict(model, collator, rows).argmax(axis=2)
        predicted = [[_OUTSIDE] * len(words) for words in sentences]
        for of_sentence, first, said_L in zip(predicted, first_tokens, said_SL.tolist(), strict=True):
            for token, word in first:
                of_sentence[word] = tags[said_L[token]]
        return predicted


def _first_tokens(words: list[int | None]) -> dict[int, int]:
    """Return position of the first token of each word → index of the word."""
    pairs = enumerate(pairwise([None, *words]))
    return {token: word for token, (before, word) in pairs if word is not None and word != before}


STRIDE = 128
_NUM_BEST = 20
_MOST_TOKENS = 30
_CONTEXT = 1
_NO_SPAN = (-1, -1)
Scores = npt.NDArray[np.float32]
# Index of the question, and the character span of each token of the context.
Window = tuple[int, list[list[int]]]


def answered(parts: Path, weights: Path, recipe: Recipe) -> list[str]:
    """Return the answer to each question of the test part, as run_qa.py; empty if it has none.

    Windows of `--max_seq_length` (384) with `--doc_stride` 128 are padded to that length (its default). The answer is
    the pair with the highest sum among the 20 best starts and ends (`--n_best_size`), at most 30 tokens long
    (`--max_answer_length`). With `--version_2_with_negative`, there is none if the first token scores higher
    (`--null_score_diff_threshold` 0).
    """
    with opened(parts, weights, recipe) as script:
        model = transformers.AutoModelForQuestionAnswering.from_pretrained(weights)

        def tokenize(examples: dict[str, list[Any]]) -> Any:
            rows = script.tokenizer(
                [question.lstrip() for question in examples["question"]],
                examples["context"],
                truncation="only_second",
                max_length=recipe.max_length,
                stride=STRIDE,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                padding="max_length",
            )
            questions = rows.pop("overflow_to_sample_mapping")
            spans = [
                [span if of == _CONTEXT else _NO_SPAN for span, of in zip(row, rows.sequence_ids(number), strict=True)]
                for number, row in enumerate(rows.pop("offset_mapping"))
            ]
            ends = [_ends(examples["answers"][question], of) for question, of in zip(questions, spans, strict=True)]
            targets = {"start_positions": [a for a, _ in ends], "end_positions": [b for _, b in ends]}
            if "number" not in examples:  # training rows are not mapped back to questions
                return rows | targets
            return rows | targets | {"number": [examples["number"][it] for it in questions], "spans": spans}

        script.parts["test"] = script.parts["test"].add_column("number", range(len(script.parts["test"])))
        has_negatives = any(not answer["text"] for part in PARTS for answer in script.parts[part]["answers"])
        rows = {part: script.mapped(part, tokenize) for part in PARTS}
        windows = list(zip(rows["test"]["number"], rows["test"]["spans"], strict=True))
        start_WL, end_WL = script.predict(model, transformers.default_data_collator, rows)
        contexts = list(script.parts["test"]["context"])
        return _texts(contexts, windows, start_WL, end_WL, has_negatives=has_negatives)


def _ends(answer: dict[str, list[Any]], spans: list[tuple[int, int]]) -> tuple[int, int]:
    """First and last token of the first answer; the first token of the window where it is not whole in there."""
    if not answer["answer_start"]:
        return 0, 0
    start = answer["answer_start"][0]
    end = start + len(answer["text"][0])
    inside = [token for token, (first, last) in enumerate(spans) if first >= 0 and last > start and first < end]
    if not inside or spans[inside[0]][0] > start or spans[inside[-1]][1] < end:
        return 0, 0
    return inside[0], inside[-1]


def _texts(
    contexts: list[str], windows: list[Window], start_WL: Scores, end_WL: Scores, *, has_negatives: bool
) -> list[str]:
    best = [(-np.inf, "")] * len(contexts)
    nothing = [np.inf] * len(contexts)
    for (question, spans), start_L, end_L in zip(windows, start_WL, end_WL, strict=True):
        nothing[question] = min(nothing[question], float(start_L[0] + end_L[0]))
        for first in np.argsort(start_L)[: -_NUM_BEST - 1 : -1].tolist():
            for last in np.argsort(end_L)[: -_NUM_BEST - 1 : -1].tolist():
                if spans[first][0] < 0 or spans[last][0] < 0 or not first <= last < first + _MOST_TOKENS:
                    continue
                text = contexts[question][spans[first][0] : spans[last][1]]
                best[question] = max(best[question], (float(start_L[first] + end_L[last]), text))
    return ["" if has_negatives and none > score else text for none, (score, text) in zip(nothing, best, strict=True)]
