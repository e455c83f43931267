"""Splits of a classification task, as texts and as tokens.

Shapes: T texts, C classes, B rows of a batch.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from clozeline.errors import DataError
from clozeline.params import LabelledParams
from clozeline.tasks.classification.baselines import Texts
from clozeline.tasks.classification.labelled import Labelled
from clozeline.tasks.classification.selection import Example, Selection, select
from clozeline.tasks.encoded import EncodedBatch, TargetedBatch
from clozeline.tasks.reading import task_records
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.text_rows import Ids, TextRows
from clozeline.tokenizer.folder import OpenTokenizer

Targets = npt.NDArray[Any]
"""`class_T`, indices of labels; for multi-label tasks `is_true_TC`, 0 or 1."""


@dataclass(frozen=True)
class ClassifiedRows:
    """One split of the task."""

    texts: Texts
    rows: TextRows
    labels: tuple[str, ...]
    """Labels that targets index: first those the model can answer, then others that occur in this split."""
    targets_T: Targets
    with_types: bool

    @classmethod
    def encode(
        cls, examples: Sequence[Example], labels: Sequence[str], opened: OpenTokenizer, params: LabelledParams
    ) -> Self:
        texts = texts_of(examples, params)
        rows = TextRows.encode(texts.first, opened, params.max_length, seconds=texts.second)
        others = {label for example in examples for label in example.labels}.difference(labels)
        every = (*labels, *sorted(others))
        return cls(texts, rows, every, _targets(examples, every, params.multi_label), with_types=False)

    def __len__(self) -> int:
        return len(self.rows)

    def encoded(self, rows_B: Ids) -> EncodedBatch:
        return self.rows.encoded(rows_B, with_types=self.with_types)

    def batch(self, rows_B: Ids) -> TargetedBatch:
        return TargetedBatch(self.encoded(rows_B), torch.from_numpy(self.targets_T[rows_B]))


Lengths = Callable[[Texts, Collection[str]], Ids]
"""Function (texts, labels) → tokens of each text as the model reads it when it chooses among the labels."""


def read_selection(inputs: TaskInputs, params: LabelledParams, lengths: Lengths) -> Selection:
    """Read the records, and select and split them.

    Raises:
        DataError: the data cannot be read or is too little, or a text is too long and `too_long` is `error`.
    """
    records = task_records(params, inputs.data)
    labelled = (Labelled.of(record, part, params) for part, record in records)

    def fits(examples: Sequence[Example]) -> list[bool]:
        trained = {label for example in examples if example.part == "train" for label in example.labels}
        length_T = lengths(texts_of(examples, params), trained | params.named_labels)
        if params.too_long == "error" and (length_T > params.max_length).any():
            raise _too_long(examples, length_T, params)
        return [bool(fit) for fit in length_T <= params.max_length]

    return select(labelled, params, None if params.too_long == "truncate" else fits)


def texts_of(examples: Sequence[Example], params: LabelledParams) -> Texts:
    first = [example.text for example in examples]
    return Texts(first, None if params.second_field is None else [example.second for example in examples])


def _targets(examples: Sequence[Example], labels: Sequence[str], multi_label: bool) -> Targets:
    place = {label: place for place, label in enumerate(labels)}
    if not multi_label:
        return np.array([place[example.label] for example in examples], dtype=np.int64)
    is_true_TC = np.zeros((len(examples), len(labels)), dtype=np.float32)
    for row, example in zip(is_true_TC, examples, strict=True):
        row[[place[label] for label in example.labels]] = 1
    return is_true_TC


def _too_long(examples: Sequence[Example], length_T: Ids, params: LabelledParams) -> DataError:
    longest = int(length_T.argmax())
    return DataError(
        f"{int((length_T > params.max_length).sum())} of {len(examples)} texts exceed `max_length` {params.max_length},"
        f" the longest with {length_T[longest]} tokens: {examples[longest].text[:80]}…",
        do="raise `max_length`, shorten the texts, or set `too_long: truncate` or `drop`",
    )
