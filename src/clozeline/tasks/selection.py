"""Which labelled texts a task uses, and which of them it trains on, chooses by, and is judged on.

A text goes where its own hash sends it: it stays there when others come or go, and all copies of it go together.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from clozeline.errors import DataError
from clozeline.params import FinetuneParams
from clozeline.tasks.labelled import Labelled


@dataclass(frozen=True, slots=True)
class Example:
    """A text, its class, and its identity: the same for texts that differ in case and white space only."""

    text: str
    label: str
    identity: str


@dataclass
class SelectionCount:
    """What became of the records: read = used + every reason."""

    num_read: int = 0
    num_used: int = 0
    without_text: int = 0
    without_label: int = 0
    duplicates: int = 0
    """Same text, same label: one is kept."""
    contradictions: int = 0
    """Same text, several labels: none is kept."""
    of_rarer_classes: int = 0
    above_max_per_class: int = 0
    of_classes_without_training_text: int = 0


@dataclass(frozen=True)
class Selection:
    """The parts of a task; `labels` is sorted, and a class is known by its place there."""

    labels: tuple[str, ...]
    train: list[Example]
    validation: list[Example]
    test: list[Example]
    count: SelectionCount = field(default_factory=SelectionCount)


def identity_of(text: str) -> str:
    """128 bits of BLAKE2b over the text without case and white space."""
    return hashlib.blake2b(" ".join(text.casefold().split()).encode(), digest_size=16).hexdigest()


def count_seen(examples: Iterable[Example], pretraining_text: Path) -> int:
    """How many of `examples` are, up to case and white space, among the texts of a Parquet file."""
    identities = {example.identity for example in examples}
    seen: set[str] = set()
    with pq.ParquetFile(pretraining_text) as file:
        for batch in file.iter_batches(columns=["text"]):
            seen.update(identities.intersection(map(identity_of, batch.column(0).to_pylist())))
    return len(seen)


def select(records: Iterable[Labelled], params: FinetuneParams) -> Selection:
    """Choose and split.

    Raises:
        DataError: fewer than two classes are left, or a part is empty.
    """
    count = SelectionCount()
    examples = _of_frequent_classes(_distinct(records, count), params.max_classes, count)
    examples = _capped(examples, params.max_per_class, count)
    parts: dict[str, list[Example]] = {"train": [], "validation": [], "test": []}
    for example in examples:
        parts[_part_of(example, params)].append(example)
    labels = {example.label for example in parts["train"]}
    for part, content in parts.items():
        known = [example for example in content if example.label in labels]
        count.of_classes_without_training_text += len(content) - len(known)
        parts[part] = known
    count.num_used = sum(map(len, parts.values()))
    _check_enough(parts, labels, count)
    return Selection(tuple(sorted(labels)), parts["train"], parts["validation"], parts["test"], count)


def _distinct(records: Iterable[Labelled], count: SelectionCount) -> list[Example]:
    """Each text once, in the order of identities; none of those that are labelled in two ways."""
    found: dict[str, list[Example]] = {}
    for record in records:
        count.num_read += 1
        text, label = record.text.strip(), record.label.strip()
        if not text:
            count.without_text += 1
        elif not label:
            count.without_label += 1
        else:
            identity = identity_of(text)
            found.setdefault(identity, []).append(Example(text, label, identity))
    examples = []
    for copies in found.values():
        if len({copy.label for copy in copies}) > 1:
            count.contradictions += len(copies)
        else:
            count.duplicates += len(copies) - 1
            examples.append(min(copies, key=lambda copy: copy.text))
    return sorted(examples, key=lambda example: example.identity)


def _of_frequent_classes(examples: list[Example], max_classes: int, count: SelectionCount) -> list[Example]:
    sizes = Counter(example.label for example in examples)
    frequent = set(sorted(sizes, key=lambda label: (-sizes[label], label))[:max_classes])
    kept = [example for example in examples if example.label in frequent]
    count.of_rarer_classes += len(examples) - len(kept)
    return kept


def _capped(examples: list[Example], max_per_class: int, count: SelectionCount) -> list[Example]:
    """At most `max_per_class` of each class: those of the lowest identity, which is as good as drawn."""
    sizes: Counter[str] = Counter()
    kept = []
    for example in examples:
        sizes[example.label] += 1
        if sizes[example.label] <= max_per_class:
            kept.append(example)
    count.above_max_per_class += len(examples) - len(kept)
    return kept


def _part_of(example: Example, params: FinetuneParams) -> str:
    place = _draw(example)
    if place < params.test_fraction:
        return "test"
    return "validation" if place < params.test_fraction + params.validation_fraction else "train"


def _draw(example: Example) -> float:
    """Uniform in [0, 1), independent of the order of identities. No seed: two seeds are judged on the same texts."""
    digest = hashlib.blake2b(example.identity.encode(), digest_size=8, person=b"part").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _check_enough(parts: Mapping[str, list[Example]], labels: set[str], count: SelectionCount) -> None:
    empty = [part for part, content in parts.items() if not content]
    if len(labels) >= 2 and not empty:
        return
    raise DataError(
        "there are too few labelled texts for this task",
        given=f"{count.num_read} records, of which {count.num_used} could be used: "
        f"{', '.join(f'{len(content)} for {part}' for part, content in parts.items())}; classes: {len(labels)}",
        expected="two classes or more, and texts for each part",
        do="add labelled texts, or check `label_field`, `validation_fraction` and `test_fraction` of this task",
    )
