"""Labelled texts of a task: selected, split into training, validation and test, and held as texts and as tokens.

Shapes: T texts, C classes, B rows of a batch.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from clozeline.params.tasks import LabelledParams
from clozeline.records.reading.streams import identity_of
from clozeline.system.errors import DataError
from clozeline.tasks import formats, selection, task
from clozeline.tasks.classification.scores import TextsOrPairs
from clozeline.tasks.rows import Ids, TextRows
from clozeline.tasks.selection import ReasonCounts, Splits, part_of
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer

_LOG = logging.getLogger(__name__)
_MOST_NAMED = 10
# `class_T`, indices of labels; for multi-label tasks `is_true_TC`, 0 or 1.
Targets = npt.NDArray[Any]
# Function (texts, labels) → tokens of each text as the model reads it when it chooses among the labels.
Lengths = Callable[[TextsOrPairs, Collection[str]], Ids]


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text or pair with its labels and its identity, which ignores case and white space."""

    text: str
    labels: tuple[str, ...]  # sorted labels; exactly one unless the task is multi-label
    identity: str
    part: selection.Part
    second: str = ""
    place: str = field(default="", compare=False)  # location of the record

    @property
    def label(self) -> str:
        """The only label, for single-label tasks."""
        (label,) = self.labels
        return label


@dataclass(frozen=True)
class Selection(Splits[LabelledText]):
    """Splits of a task.

    `labels` can be answered, sorted; a class is an index of them. Validation and test texts may have others.
    """

    labels: tuple[str, ...]
    trained_labels: frozenset[str]

    @property
    def every_label(self) -> frozenset[str]:
        """Labels of all texts."""
        return _labels_of(example for part in self.parts.values() for example in part)

    def num_not_trained(self, part: Sequence[LabelledText]) -> int:
        """Return the number of texts with a label that no training text has."""
        return sum(not self.trained_labels.issuperset(example.labels) for example in part)


# Function that tells for each example whether it is short enough.
Fits = Callable[[Sequence[LabelledText]], Sequence[bool]]


def select(
    records: Iterable[tuple[selection.Part, selection.LabelledRecord]], params: LabelledParams, fits: Fits | None = None
) -> Selection:
    """Select the examples and split them.

    A multi-label text that loses the label of a rarer class stays in the task. A label that no training text has stays
    on validation and test texts, and counts as missed.

    Raises:
        DataError: fewer than two classes are left, or a split is empty or has no label that can be answered.
    """
    count = ReasonCounts.of_records(
        *("without_text", "without_label"),
        "duplicates",  # copies with the same text and labels as a record that is kept
        "contradictions",  # records with the same text and different labels; none is kept
        *("in_several_parts", "of_rarer_classes", "above_max_per_class", "beyond_max_train"),
        "too_long",  # texts dropped by `too_long: drop`
    )
    examples = selection.select(
        records, partial(_example, params), _identity_of, partial(_without_copies, count), count
    )
    examples = _of_frequent_classes(examples, params, count)
    examples = _capped(examples, params.max_per_class, count)
    if fits is not None:
        fit = dict(zip(examples, fits(examples), strict=True))
        count.add("too_long", *(example.place for example in examples if not fit[example]))
        examples = [example for example in examples if fit[example]]
    splits = Splits.of(examples, _identity_of, count, params.max_train)
    trained = _labels_of(splits.train)
    labels = trained | params.named_labels
    if len(trained) < 2 or not all(splits.parts.values()):
        raise splits.too_few(
            "labelled texts",
            f"texts in each split and two classes in training, which has {len(trained)}",
            "add labelled texts, or check `label_field`, `validation_fraction` and `test_fraction` of this task",
        )
    _check_answerable(splits, labels)
    _name_unseen(splits, labels)
    return Selection(splits.train, splits.validation, splits.test, count, tuple(sorted(labels)), trained)


def _labels_of(examples: Iterable[LabelledText]) -> frozenset[str]:
    return frozenset(label for example in examples for label in example.labels)


def _example(
    params: LabelledParams, found: tuple[selection.Part, selection.LabelledRecord]
) -> LabelledText | tuple[str, str]:
    given, record = found
    texts, labels = [text.strip() for text in formats.texts_in(record, params)], formats.labels_in(record, params)
    if not all(texts):
        return "without_text", record.place
    if labels is None:
        return "without_label", record.place
    identity = identity_of(*texts)
    first, second = (*texts, "")[:2]
    part = part_of(identity, given, params)
    return LabelledText(first, tuple(sorted(set(labels))), identity, part, second, record.place)


def _without_copies(count: ReasonCounts, copies: list[LabelledText]) -> Iterator[LabelledText]:
    """Yield one of the copies; none if they have different labels."""
    if len({copy.labels for copy in copies}) > 1:
        count.add("contradictions", *(copy.place for copy in copies))
    else:
        count.add("duplicates", *(copy.place for copy in copies[1:]))
        yield min(copies, key=lambda copy: (copy.text, copy.second))


def _of_frequent_classes(texts: list[LabelledText], params: LabelledParams, count: ReasonCounts) -> list[LabelledText]:
    """Return the texts with a label of a frequent class; of a multi-label task all, with only those labels."""
    sizes = Counter(label for example in texts for label in example.labels)
    frequent = set(sorted(sizes, key=lambda label: (-sizes[label], label))[: params.max_classes])
    if params.multi_label:
        return [replace(it, labels=tuple(label for label in it.labels if label in frequent)) for it in texts]
    kept = [example for example in texts if example.label in frequent]
    count.add_limited("of_rarer_classes", len(texts) - len(kept))
    return kept


def _capped(examples: list[LabelledText], max_per_class: int | None, count: ReasonCounts) -> list[LabelledText]:
    """Return at most `max_per_class` examples of each class: those with the lowest hashes, a sample without a seed."""
    if max_per_class is None:
        return examples
    sizes: Counter[str] = Counter()
    lowest: set[str] = set()
    for example in sorted(examples, key=_identity_of):
        sizes[example.label] += 1
        if sizes[example.label] <= max_per_class:
            lowest.add(example.identity)
    count.add_limited("above_max_per_class", len(examples) - len(lowest))
    return [example for example in examples if example.identity in lowest]


def _identity_of(example: LabelledText) -> str:
    return example.identity


def _name_unseen(splits: Splits[LabelledText], labels: frozenset[str]) -> None:
    judged = Counter(label for example in (*splits.validation, *splits.test) for label in example.labels)
    unseen = set(judged) - labels
    if unseen:
        _LOG.warning(
            "labels that occur only in validation or test texts count as missed: %s (texts: %d)",
            *(_some(unseen), sum(judged[label] for label in unseen)),
        )


def _check_answerable(splits: Splits[LabelledText], labels: frozenset[str]) -> None:
    """Check that every split has a label that can be answered, because it measures nothing otherwise."""
    for part, content in splits.parts.items():
        if all(example.labels and labels.isdisjoint(example.labels) for example in content):
            raise DataError(
                f"no {part} text has a label that the model can answer ({_some(labels)})",
                given=_some(_labels_of(content)),
                do="spell labels the same way in every split, or name other files in `splits` of this task",
            )


def _some(labels: Collection[str]) -> str:
    return ", ".join(sorted(labels)[:_MOST_NAMED]) + ", …" * (len(labels) > _MOST_NAMED)


@dataclass(frozen=True)
class ClassifiedRows:
    """One split of the task.

    Targets index `labels`: first those the model can answer, then others that occur in this split.
    """

    texts: TextsOrPairs
    rows: TextRows
    labels: tuple[str, ...]
    targets_T: Targets

    @classmethod
    def encode(
        cls, examples: Sequence[LabelledText], labels: Sequence[str], opened: OpenTokenizer, params: LabelledParams
    ) -> Self:
        texts = texts_of(examples, params)
        rows = TextRows.encode(texts.first, opened, params.max_length, seconds=texts.second)
        every = (*labels, *sorted(_labels_of(examples).difference(labels)))
        return cls(texts, rows, every, _targets(examples, every, params.multi_label))

    def __len__(self) -> int:
        return len(self.rows)


def read_selection(inputs: task.TaskInputs, params: LabelledParams, lengths: Lengths) -> Selection:
    """Read the records, and select and split them.

    Raises:
        DataError: the data cannot be read or is too little, or a text is too long and `too_long` is `error`.
    """

    def fits(examples: Sequence[LabelledText]) -> list[bool]:
        trained = _labels_of(example for example in examples if example.part == "train")
        length_T = lengths(texts_of(examples, params), trained | params.named_labels)
        if params.too_long == "error" and (num_long := int((length_T > params.max_length).sum())):
            longest = int(length_T.argmax())
            raise DataError(
                f"{num_long} of {len(examples)} texts exceed `max_length` {params.max_length}, the longest with"
                f" {length_T[longest]} tokens: {examples[longest].text[:80]}…",
                do="raise `max_length`, shorten the texts, or set `too_long: truncate` or `drop`",
            )
        return [bool(fit) for fit in length_T <= params.max_length]

    return select(formats.task_records(params, inputs.data), params, None if params.too_long == "truncate" else fits)


def texts_of(examples: Sequence[LabelledText], params: LabelledParams) -> TextsOrPairs:
    first = [example.text for example in examples]
    return TextsOrPairs(first, None if params.second_field is None else [example.second for example in examples])


def _targets(examples: Sequence[LabelledText], labels: Sequence[str], multi_label: bool) -> Targets:
    place = {label: place for place, label in enumerate(labels)}
    if not multi_label:
        return np.array([place[example.label] for example in examples], dtype=np.int64)
    is_true_TC = np.zeros((len(examples), len(labels)), dtype=np.float32)
    for row, example in zip(is_true_TC, examples, strict=True):
        row[[place[label] for label in example.labels]] = 1
    return is_true_TC
