"""The user's own items for the exam of INT8: texts, or records with labels."""

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from clozeline.artifacts.finetune.model.held_out import EntitySpan, HeldOut
from clozeline.errors import DataError
from clozeline.inference.entities import extents
from clozeline.params import SourceParams
from clozeline.tasks.records import Record, read_records
from clozeline.tasks.tagging.schemes import to_iob2
from clozeline.text.files import texts_of

MOST_ITEMS: Final = 576
"""As many as the default of `export.num_agreement_texts`, and the texts for calibration."""
_MOST_FOR_VECTORS: Final = 256
"""Texts whose halves a sentence encoder has to match. Among more, half of the errors are texts of nearly equal
similarity, which INT8 may order otherwise without any loss."""


def items_of_texts(path: Path, source: SourceParams, task: str) -> list[HeldOut]:
    """Return items without labels from a file or folder of text.

    Raises:
        DataError: there is no text.
    """
    most = _MOST_FOR_VECTORS if task == "feature-extraction" else MOST_ITEMS
    return _chosen((HeldOut(text=text) for text in texts_of(path, source)), most, path)


def items_of_records(
    path: Path, task: str, labels: Iterable[str], *, reads_pairs: bool, names: Mapping[str, str] | None = None
) -> list[HeldOut]:
    """Return items with labels from a table: JSON Lines, CSV, TSV or Parquet.

    Args:
        names: field of `FIELDS` → its name in the file, where that differs.

    Raises:
        DataError: the file cannot be read, lacks a field, or has no label that the model knows; or models of this kind
            have no labels.
    """
    known = set(labels)
    kind = task if not reads_pairs else "pairs" if len(known) > 1 else "scored pairs"
    if kind not in FIELDS:
        raise DataError(
            f"{path}: {task} has no labelled items, only {', '.join(FIELDS)}", do="give text instead: `--text FILE`"
        )
    make, theirs = _MADE[kind], {name: (names or {}).get(name, name) for name in FIELDS[kind]}
    records = read_records(path, {f"--field {name}": named for name, named in theirs.items()})
    ours = (Record({name: it.values[named] for name, named in theirs.items()}, it.place) for it in records)
    items = _chosen(map(make, ours), MOST_ITEMS, path)
    given = sorted({label for item in items for label in item.right})
    if known and given and known.isdisjoint(given):
        raise DataError(
            f"{path} has labels such as {', '.join(given[:5])}, and the model {', '.join(sorted(known)[:5])}",
            do="write the labels as the model has them, or give text instead: `--text FILE`",
        )
    return items


def _chosen(items: Iterable[HeldOut], most: int, path: Path) -> list[HeldOut]:
    """Return the items with the lowest hashes, which do not depend on the order of the file."""
    distinct = {item.model_dump_json(exclude_defaults=True): item for item in items if item.text}
    if not distinct:
        raise DataError(f"{path} holds no items", do="give another file, with some hundred")
    lowest = heapq.nsmallest(most, distinct, key=lambda line: hashlib.sha256(line.encode()).digest())
    return [distinct[line] for line in lowest]


def _labelled(record: Record) -> HeldOut:
    return HeldOut(text=record.text("text"), right=_right(record))


def _labelled_pair(record: Record) -> HeldOut:
    return HeldOut(text=record.text("text"), second=record.text("second"), right=_right(record))


def _right(record: Record) -> tuple[str, ...]:
    if isinstance(record.values["label"], list):
        return tuple(record.strings("label"))
    label = record.category("label")
    return (label,) if label else ()


def _scored_pair(record: Record) -> HeldOut:
    return HeldOut(text=record.text("sentence1"), second=record.text("sentence2"), score=record.number("score"))


def _question(record: Record) -> HeldOut:
    answers: Any = record.values["answers"]
    right = (
        answers.get("text", ()) if isinstance(answers, Mapping) else [answers] if isinstance(answers, str) else answers
    )
    if not isinstance(right, list | tuple) or not all(isinstance(one, str) for one in right):
        raise record.refuse("answers", "a string, a list of strings, or {text: [...]}")
    return HeldOut(text=record.text("question"), second=record.text("context"), right=tuple(right))


def _tagged(record: Record) -> HeldOut:
    words, tags = record.strings("tokens"), record.strings("ner_tags")
    if len(words) != len(tags):
        raise record.refuse("ner_tags", f"one tag for each of the {len(words)} tokens")
    return HeldOut(text=" ".join(words), entities=tuple(_spans(words, tags)))


def _spans(words: list[str], tags: list[str]) -> Iterator[EntitySpan]:
    starts = [sum(len(word) + 1 for word in words[:place]) for place in range(len(words))]
    for found in extents(to_iob2(tags)):
        end = starts[found.last] + len(words[found.last])
        yield EntitySpan(start=starts[found.first], end=end, type=found.type)


FIELDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "feature-extraction": ("sentence1", "sentence2", "score"),
        "text-classification": ("text", "label"),
        "pairs": ("text", "second", "label"),
        "scored pairs": ("sentence1", "sentence2", "score"),
        "token-classification": ("tokens", "ner_tags"),
        "question-answering": ("question", "context", "answers"),
    }
)
"""Fields of the records by kind of model; `pairs` are those of a classifier that reads two texts, `scored pairs` those
of a cross-encoder, which gives two texts one number."""
_MADE: Final[Mapping[str, Callable[[Record], HeldOut]]] = MappingProxyType(
    {
        "feature-extraction": _scored_pair,
        "text-classification": _labelled,
        "pairs": _labelled_pair,
        "scored pairs": _scored_pair,
        "token-classification": _tagged,
        "question-answering": _question,
    }
)
