"""Items on which INT8 is compared with fp32: the user's own texts or records, or else built-in ones.

Built-in sentences of six parts say who did what where, and how it was. So taggers find names, classifiers an opinion,
answerers an answer, and pairs that share some of the parts have a known similarity. The project keeps the items of an
import in `imports/NAME.jsonl`, one JSON object per line.
"""

import hashlib
import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from clozeline.corpus.cleaning.portions import texts_of
from clozeline.inference.classifier import extents
from clozeline.params.text import SourceParams
from clozeline.records.finetune.scored_items import EntitySpan, HeldOut
from clozeline.system.errors import DataError
from clozeline.system.files import replacing_file
from clozeline.tasks.selection import LabelledRecord, read_records
from clozeline.tasks.tagging.data import to_iob2

_NUM_ITEMS = 320
# As many as the default of `export.num_agreement_texts`, and the texts for calibration.
MOST_ITEMS = 576
# Texts whose halves a sentence encoder has to match. Among more, half of the errors are texts of nearly equal
# similarity, which INT8 may order otherwise without any loss.
_MOST_FOR_VECTORS = 256
# Fields of the records by kind of model; `pairs` are those of a classifier that reads two texts, `scored pairs` those
# of a cross-encoder, which gives two texts one number.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "feature-extraction": ("sentence1", "sentence2", "score"),
    "text-classification": ("text", "label"),
    "pairs": ("text", "second", "label"),
    "scored pairs": ("sentence1", "sentence2", "score"),
    "token-classification": ("tokens", "ner_tags"),
    "question-answering": ("question", "context", "answers"),
}


# The parts of a sentence, by their kinds.
_Event = Mapping[str, str]
_SENTENCE = "{person} {deed} {firm} in {place} {time}, and {opinion}."
_REORDERED = "In {place}, {time}: {person} {deed} {firm}; {opinion}."


@cache
def _parts() -> Mapping[str, Sequence[str]]:
    parts: Mapping[str, Sequence[str]] = YAML(typ="safe").load(Path(__file__).with_name("built_in_items.yaml"))
    return parts


def built_in_items(task: str, *, reads_pairs: bool) -> list[HeldOut]:
    """Return the same items each time, for a model of this kind."""
    draw = random.Random(0)
    make = _pair_without_score if reads_pairs else _MADE.get(task, _text)
    events = [{part: draw.choice(values) for part, values in _parts().items()} for _ in range(_NUM_ITEMS)]
    return [make(event, number, draw) for number, event in enumerate(events)]


def are_built_in(items: Iterable[HeldOut], task: str, *, reads_pairs: bool) -> bool:
    """Return whether no item is the user's. Built-in answers show what INT8 changes, not which model is better."""
    return set(items) <= set(built_in_items(task, reads_pairs=reads_pairs))


def _text(event: _Event, number: int, draw: random.Random) -> HeldOut:
    return HeldOut(text=_SENTENCE.format(**event))


def _question(event: _Event, number: int, draw: random.Random) -> HeldOut:
    asked, answer = (
        ("Who {deed} {firm}?", "person"),
        ("Where was {person}?", "place"),
        ("When did that happen in {place}?", "time"),
    )[number % 3]
    return HeldOut(text=asked.format(**event), second=_SENTENCE.format(**event), right=(event[answer],))


def _scored_pair(event: _Event, number: int, draw: random.Random) -> HeldOut:
    """Pair a sentence with one of which some parts are other ones; the score is the share of equal parts."""
    changed = _changed(event, number % (len(event) + 1), draw)
    score = sum(changed[part] == event[part] for part in event) / len(event)
    return HeldOut(text=_SENTENCE.format(**event), second=_REORDERED.format(**changed), score=score)


def _pair_without_score(event: _Event, number: int, draw: random.Random) -> HeldOut:
    second = (
        "{person} was in {place}.".format(**event),
        "{person} was never in {place}.".format(**event),
        f"{draw.choice(_parts()['person'])} likes music.",
        _REORDERED.format(**_changed(event, number % 4, draw)),
    )[number % 4]
    return HeldOut(text=_SENTENCE.format(**event), second=second)


def _changed(event: _Event, num_parts: int, draw: random.Random) -> _Event:
    changed = dict(event)
    for part in draw.sample(list(event), num_parts):
        changed[part] = draw.choice([value for value in _parts()[part] if value != changed[part]])
    return changed


# Kind of model → its items; plain sentences for the others.
_MADE: Mapping[str, Callable[[_Event, int, random.Random], HeldOut]] = {
    "question-answering": _question,
    "feature-extraction": _scored_pair,
}


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
        raise DataError(f"{path}: {task} has no labelled items, only {', '.join(FIELDS)}", do="use `--text FILE`")
    make, theirs = _READ[kind], {name: (names or {}).get(name, name) for name in FIELDS[kind]}
    records = read_records(path, {f"--field {name}": named for name, named in theirs.items()})
    ours = (LabelledRecord({name: it.values[named] for name, named in theirs.items()}, it.place) for it in records)
    items = _chosen(map(make, ours), MOST_ITEMS, path)
    given = sorted({label for item in items for label in item.right})
    if known and given and known.isdisjoint(given):
        problem = f"{path} has labels such as {', '.join(given[:5])}, and the model {', '.join(sorted(known)[:5])}"
        raise DataError(problem, do="write the labels as the model has them, or give text instead: `--text FILE`")
    return items


def _chosen(items: Iterable[HeldOut], most: int, path: Path) -> list[HeldOut]:
    """Return the items with the lowest hashes, which do not depend on the order of the file."""
    distinct = {item.model_dump_json(exclude_defaults=True): item for item in items if item.text}
    if not distinct:
        raise DataError(f"{path} holds no items", do="give another file, with some hundred")
    lowest = heapq.nsmallest(most, distinct, key=lambda line: hashlib.sha256(line.encode()).digest())
    return [distinct[line] for line in lowest]


def _right(record: LabelledRecord) -> tuple[str, ...]:
    if isinstance(record.values["label"], list):
        return tuple(record.strings("label"))
    label = record.category("label")
    return (label,) if label else ()


def _read_scored_pair(record: LabelledRecord) -> HeldOut:
    return HeldOut(text=record.text("sentence1"), second=record.text("sentence2"), score=record.number("score"))


def _read_question(record: LabelledRecord) -> HeldOut:
    answers: Any = record.values["answers"]
    right = (
        answers.get("text", ()) if isinstance(answers, Mapping) else [answers] if isinstance(answers, str) else answers
    )
    if not isinstance(right, list | tuple) or not all(isinstance(one, str) for one in right):
        raise record.refuse("answers", "a string, a list of strings, or {text: [...]}")
    return HeldOut(text=record.text("question"), second=record.text("context"), right=tuple(right))


def _tagged(record: LabelledRecord) -> HeldOut:
    words, tags = record.strings("tokens"), record.strings("ner_tags")
    if len(words) != len(tags):
        raise record.refuse("ner_tags", f"one tag for each of the {len(words)} tokens")
    return HeldOut(text=" ".join(words), entities=tuple(_spans(words, tags)))


def _spans(words: list[str], tags: list[str]) -> Iterator[EntitySpan]:
    starts = [sum(len(word) + 1 for word in words[:place]) for place in range(len(words))]
    for found in extents(to_iob2(tags)):
        end = starts[found.last] + len(words[found.last])
        yield EntitySpan(start=starts[found.first], end=end, type=found.type)


_READ: Mapping[str, Callable[[LabelledRecord], HeldOut]] = {
    "feature-extraction": _read_scored_pair,
    "text-classification": lambda record: HeldOut(text=record.text("text"), right=_right(record)),
    "pairs": lambda it: HeldOut(text=it.text("text"), second=it.text("second"), right=_right(it)),
    "scored pairs": _read_scored_pair,
    "token-classification": _tagged,
    "question-answering": _read_question,
}


# Folder of the items on which INT8 is compared with fp32; like params.yaml it belongs to the project.
FOLDER = "imports"


def items_file(name: str) -> str:
    """Return the file of the import `name`, from the root of the project."""
    return f"{FOLDER}/{name}.jsonl"


def items_files(root: Path) -> list[Path]:
    """Return the files of all imports of the project in `root`."""
    return sorted((root / FOLDER).glob("*.jsonl"))


def write_items(path: Path, items: Sequence[HeldOut]) -> None:
    """Write the items into the file `path`, whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    with replacing_file(path) as beside:
        lines = (f"{item.model_dump_json(exclude_defaults=True)}\n" for item in items)
        beside.write_text("".join(lines), encoding="utf-8")


def without(items: Sequence[HeldOut], holds: Callable[[str], bool]) -> list[HeldOut]:
    """Return the items of whose texts `holds` is true of none."""
    return [item for item in items if not any(map(holds, (item.text, item.second or "", *item.right)))]
