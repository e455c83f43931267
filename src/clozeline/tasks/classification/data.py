"""Labelled texts of a task: selected, split into training, validation and test, and held as texts and as tokens.

Shapes: T texts, C classes, B rows of a batch.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from clozeline.params.tasks import LabelledParams
from clozeline.records.reading.streams import identity_of
from clozeline.system.errors import DataError
from clozeline.tasks.classification.scores import TextsOrPairs
from clozeline.tasks.files import Part
from clozeline.tasks.formats import Labelled, task_records
from clozeline.tasks.rows import EncodedBatch, Ids, TargetedBatch, TextRows
from clozeline.tasks.selection import RecordCount, num_of_each, part_of, remedy, strictest
from clozeline.tasks.task import TaskInputs
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer

_LOG = logging.getLogger(__name__)
_MOST_NAMED = 10
Targets = npt.NDArray[Any]
"""`class_T`, indices of labels; for multi-label tasks `is_true_TC`, 0 or 1."""
Lengths = Callable[[TextsOrPairs, Collection[str]], Ids]
"""Function (texts, labels) → tokens of each text as the model reads it when it chooses among the labels."""


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text or pair with its labels and its identity, which ignores case and white space."""

    text: str
    labels: tuple[str, ...]
    """Sorted labels; exactly one unless the task is multi-label."""
    identity: str
    part: Part
    second: str = ""
    place: str = field(default="", compare=False)
    """Location of the record."""

    @property
    def label(self) -> str:
        """The only label, for single-label tasks."""
        (label,) = self.labels
        return label


@dataclass
class SelectionCount(RecordCount):
    """Counts of records, used and dropped."""

    without_text: int = 0
    without_label: int = 0
    duplicates: int = 0
    """Copies with the same text and labels as a record that is kept."""
    contradictions: int = 0
    """Records with the same text and different labels; none is kept."""
    in_several_parts: int = 0
    """Copies of a text that a stricter split holds (test before validation before training); these are dropped."""
    of_rarer_classes: int = 0
    above_max_per_class: int = 0
    beyond_max_train: int = 0
    too_long: int = 0
    """Texts dropped by `too_long: drop`."""


@dataclass(frozen=True)
class Selection:
    """Splits of a task."""

    labels: tuple[str, ...]
    """Labels that can be answered, sorted; a class is an index of them. Validation and test texts may have others."""
    train: list[LabelledText]
    validation: list[LabelledText]
    test: list[LabelledText]
    trained_labels: frozenset[str]
    """Labels of the training texts."""
    count: SelectionCount = field(default_factory=SelectionCount)

    @property
    def every_label(self) -> frozenset[str]:
        """Labels of all texts."""
        return frozenset(label for example in (*self.train, *self.validation, *self.test) for label in example.labels)

    def num_not_trained(self, part: Sequence[LabelledText]) -> int:
        """Return the number of texts with a label that no training text has."""
        return sum(not self.trained_labels.issuperset(example.labels) for example in part)


Fits = Callable[[Sequence[LabelledText]], Sequence[bool]]
"""Function that tells for each example whether it is short enough."""


def select(records: Iterable[Labelled], params: LabelledParams, fits: Fits | None = None) -> Selection:
    """Select the examples and split them.

    A multi-label text that loses the label of a rarer class stays in the task. A label that no training text has stays
    on validation and test texts, and counts as missed.

    Raises:
        DataError: fewer than two classes are left, or a split is empty or has no label that can be answered.
    """
    count = SelectionCount()
    examples = _of_frequent_classes(_distinct(records, params, count), params, count)
    examples = _capped(examples, params.max_per_class, count)
    if fits is not None:
        fit = dict(zip(examples, fits(examples), strict=True))
        count.add("too_long", *(example.place for example in examples if not fit[example]))
        examples = [example for example in examples if fit[example]]
    parts: dict[Part, list[LabelledText]] = {"train": [], "validation": [], "test": []}
    for example in sorted(examples, key=_identity_of):
        parts[example.part].append(example)
    parts["train"], count.beyond_max_train = parts["train"][: params.max_train], len(parts["train"])
    count.beyond_max_train -= len(parts["train"])
    trained = frozenset(label for example in parts["train"] for label in example.labels)
    count.num_used = sum(map(len, parts.values()))
    count.tell()
    labels = trained | params.named_labels
    _check_enough(parts, trained, count)
    _check_answerable(parts, labels)
    _name_unseen(parts, labels)
    return Selection(tuple(sorted(labels)), **parts, trained_labels=trained, count=count)


def _distinct(records: Iterable[Labelled], params: LabelledParams, count: SelectionCount) -> list[LabelledText]:
    """Return each text once, in the order of the records, without texts whose copies have different labels."""
    found: dict[str, list[LabelledText]] = {}
    for record in records:
        count.num_read += 1
        texts = [text.strip() for text in record.texts]
        if not all(texts):
            count.add("without_text", record.place)
        elif record.labels is None:
            count.add("without_label", record.place)
        else:
            identity = identity_of(*texts)
            part = part_of(identity, record.given, params)
            labels = tuple(sorted(set(record.labels)))
            first, second = (*texts, "")[:2]
            example = LabelledText(first, labels, identity, part, second, record.place)
            found.setdefault(identity, []).append(example)
    examples = []
    for all_copies in found.values():
        part = strictest(copy.part for copy in all_copies)
        copies = [copy for copy in all_copies if copy.part == part]
        count.add("in_several_parts", *(copy.place for copy in all_copies if copy.part != part))
        if len({copy.labels for copy in copies}) > 1:
            count.add("contradictions", *(copy.place for copy in copies))
        else:
            count.add("duplicates", *(copy.place for copy in copies[1:]))
            examples.append(min(copies, key=lambda copy: (copy.text, copy.second)))
    return examples


def _of_frequent_classes(
    examples: list[LabelledText], params: LabelledParams, count: SelectionCount
) -> list[LabelledText]:
    sizes = Counter(label for example in examples for label in example.labels)
    frequent = set(sorted(sizes, key=lambda label: (-sizes[label], label))[: params.max_classes])
    kept = _with_labels_of(frequent, examples, params.multi_label)
    count.of_rarer_classes += len(examples) - len(kept)
    return kept


def _with_labels_of(labels: set[str], examples: list[LabelledText], multi_label: bool) -> list[LabelledText]:
    """Return the examples with a label in `labels`; for multi-label tasks all examples, with only those labels."""
    if not multi_label:
        return [example for example in examples if example.label in labels]
    return [
        replace(example, labels=tuple(label for label in example.labels if label in labels)) for example in examples
    ]


def _capped(examples: list[LabelledText], max_per_class: int | None, count: SelectionCount) -> list[LabelledText]:
    """Return at most `max_per_class` examples of each class: those with the lowest hashes, a sample without a seed."""
    if max_per_class is None:
        return examples
    sizes: Counter[str] = Counter()
    lowest: set[str] = set()
    for example in sorted(examples, key=_identity_of):
        sizes[example.label] += 1
        if sizes[example.label] <= max_per_class:
            lowest.add(example.identity)
    count.above_max_per_class += len(examples) - len(lowest)
    return [example for example in examples if example.identity in lowest]


def _identity_of(example: LabelledText) -> str:
    return example.identity


def _name_unseen(parts: Mapping[Part, list[LabelledText]], labels: frozenset[str]) -> None:
    judged = Counter(label for part in ("validation", "test") for example in parts[part] for label in example.labels)
    unseen = sorted(set(judged) - labels)
    if unseen:
        num_texts = sum(judged[label] for label in unseen)
        _LOG.warning(
            "%s as missed: %s (%s)",
            "1 label occurs only in validation or test texts, and counts"
            if len(unseen) == 1
            else f"{len(unseen)} labels occur only in validation or test texts, and count",
            _some(unseen),
            "1 text" if num_texts == 1 else f"{num_texts} texts",
        )


def _check_enough(parts: Mapping[Part, list[LabelledText]], trained: frozenset[str], count: SelectionCount) -> None:
    if len(trained) >= 2 and all(parts.values()):
        return
    raise DataError(
        f"too few labelled texts: {count.num_read} records, {count.num_used} of use: {num_of_each(parts)}; a task needs"
        f" texts in each split and two classes in training, which has {len(trained)}",
        do=remedy(
            "add labelled texts, or check `label_field`, `validation_fraction` and `test_fraction` of this task",
            parts,
            count.in_several_parts,
        ),
    )


def _check_answerable(parts: Mapping[Part, list[LabelledText]], labels: frozenset[str]) -> None:
    """Check that every split has a label that can be answered, because it measures nothing otherwise."""
    for part, content in parts.items():
        if all(example.labels and labels.isdisjoint(example.labels) for example in content):
            raise DataError(
                f"no {part} text has a label that the model can answer ({_some(labels)})",
                given=_some({label for example in content for label in example.labels}),
                do="spell labels the same way in every split, or name other files in `splits` of this task",
            )


def _some(labels: Collection[str]) -> str:
    return ", ".join(sorted(labels)[:_MOST_NAMED]) + ", …" * (len(labels) > _MOST_NAMED)


@dataclass(frozen=True)
class ClassifiedRows:
    """One split of the task."""

    texts: TextsOrPairs
    rows: TextRows
    labels: tuple[str, ...]
    """Labels that targets index: first those the model can answer, then others that occur in this split."""
    targets_T: Targets
    with_types: bool

    @classmethod
    def encode(
        cls, examples: Sequence[LabelledText], labels: Sequence[str], opened: OpenTokenizer, params: LabelledParams
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


def read_selection(inputs: TaskInputs, params: LabelledParams, lengths: Lengths) -> Selection:
    """Read the records, and select and split them.

    Raises:
        DataError: the data cannot be read or is too little, or a text is too long and `too_long` is `error`.
    """
    records = task_records(params, inputs.data)
    labelled = (Labelled.of(record, part, params) for part, record in records)

    def fits(examples: Sequence[LabelledText]) -> list[bool]:
        trained = {label for example in examples if example.part == "train" for label in example.labels}
        length_T = lengths(texts_of(examples, params), trained | params.named_labels)
        if params.too_long == "error" and (length_T > params.max_length).any():
            raise _too_long(examples, length_T, params)
        return [bool(fit) for fit in length_T <= params.max_length]

    return select(labelled, params, None if params.too_long == "truncate" else fits)


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


def _too_long(examples: Sequence[LabelledText], length_T: Ids, params: LabelledParams) -> DataError:
    longest = int(length_T.argmax())
    return DataError(
        f"{int((length_T > params.max_length).sum())} of {len(examples)} texts exceed `max_length` {params.max_length},"
        f" the longest with {length_T[longest]} tokens: {examples[longest].text[:80]}…",
        do="raise `max_length`, shorten the texts, or set `too_long: truncate` or `drop`",
    )
