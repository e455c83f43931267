"""Which labelled texts a task uses, and which of them it trains on, chooses by, and is judged on."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from clozeline.errors import DataError
from clozeline.params import ClassificationParams
from clozeline.tasks.records import Record
from clozeline.tasks.sources import Part
from clozeline.tasks.splitting import identity_of, num_of_each, part_of, strictest


@dataclass(frozen=True, slots=True)
class Labelled:
    """One record; a text or a label that it does not have is empty."""

    text: str
    label: str
    given: Part = "train"

    @classmethod
    def of(cls, record: Record, given: Part, params: ClassificationParams) -> "Labelled":
        return cls(record.text(params.text_field), record.category(params.label_field), given)


@dataclass(frozen=True, slots=True)
class Example:
    """A text, its class, and its identity: the same for texts that differ in case and white space only."""

    text: str
    label: str
    identity: str
    part: Part


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
    in_several_parts: int = 0
    """Copies of a text that was given for a part that judges: there it stays, and these are not trained on."""
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


def select(records: Iterable[Labelled], params: ClassificationParams) -> Selection:
    """Choose and split.

    Raises:
        DataError: fewer than two classes are left, or a part is empty.
    """
    count = SelectionCount()
    examples = _of_frequent_classes(_distinct(records, params, count), params.max_classes, count)
    examples = _capped(examples, params.max_per_class, count)
    parts: dict[Part, list[Example]] = {"train": [], "validation": [], "test": []}
    for example in examples:
        parts[example.part].append(example)
    labels = {example.label for example in parts["train"]}
    for part, content in parts.items():
        known = [example for example in content if example.label in labels]
        count.of_classes_without_training_text += len(content) - len(known)
        parts[part] = known
    count.num_used = sum(map(len, parts.values()))
    _check_enough(parts, labels, count)
    return Selection(tuple(sorted(labels)), parts["train"], parts["validation"], parts["test"], count)


def _distinct(records: Iterable[Labelled], params: ClassificationParams, count: SelectionCount) -> list[Example]:
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
            part = part_of(identity, record.given, params)
            found.setdefault(identity, []).append(Example(text, label, identity, part))
    examples = []
    for all_copies in found.values():
        part = strictest(copy.part for copy in all_copies)
        copies = [copy for copy in all_copies if copy.part == part]
        count.in_several_parts += len(all_copies) - len(copies)
        if len({copy.label for copy in copies}) > 1:
            count.contradictions += len(copies)
        else:
            count.duplicates += len(copies) - 1
            examples.append(min(copies, key=lambda copy: copy.text))
    return sorted(examples, key=lambda example: example.identity)


def _of_frequent_classes(examples: list[Example], max_classes: int | None, count: SelectionCount) -> list[Example]:
    sizes = Counter(example.label for example in examples)
    frequent = set(sorted(sizes, key=lambda label: (-sizes[label], label))[:max_classes])
    kept = [example for example in examples if example.label in frequent]
    count.of_rarer_classes += len(examples) - len(kept)
    return kept


def _capped(examples: list[Example], max_per_class: int | None, count: SelectionCount) -> list[Example]:
    """At most `max_per_class` of each class: those of the lowest identity, which is as good as drawn."""
    sizes: Counter[str] = Counter()
    kept = []
    for example in examples:
        sizes[example.label] += 1
        if max_per_class is None or sizes[example.label] <= max_per_class:
            kept.append(example)
    count.above_max_per_class += len(examples) - len(kept)
    return kept


def _check_enough(parts: Mapping[Part, list[Example]], labels: set[str], count: SelectionCount) -> None:
    empty = [part for part, content in parts.items() if not content]
    if len(labels) >= 2 and not empty:
        return
    raise DataError(
        "there are too few labelled texts for this task",
        given=f"{count.num_read} records, of which {count.num_used} could be used: "
        f"{num_of_each(parts)}; classes: {len(labels)}",
        expected="two classes or more, and texts for each part",
        do="add labelled texts, or check `label_field`, `validation_fraction` and `test_fraction` of this task",
    )
