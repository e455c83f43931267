"""Held-out items beside a fine-tuned model: validation items on which its exported graphs are examined, and test items
on which a release compares it with the champion.
"""

import hashlib
import heapq
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, FiniteFloat, PositiveInt, ValidationError

from clozeline.errors import ArtifactError

FILE = "held_out.jsonl"
MAX_ITEMS = 512
TEST_FILE = "test_items.jsonl"
MAX_TEST_ITEMS = 4096


class EntitySpan(BaseModel):
    """An entity: its type, and the characters `start` to `end` of the text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int
    end: int
    type: str


class HeldOut(BaseModel):
    """One item and its label."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    """The text, the first text of a pair, or the question."""
    second: str | None = None
    """The second text of a pair, or the context of a question."""
    right: tuple[str, ...] = ()
    """Classification: labels of the text. Question answering: every accepted answer; empty if there is none.
    Similarity: the texts that match it.
    """
    entities: tuple[EntitySpan, ...] = ()
    """Tagging: the entities of the text."""
    score: FiniteFloat | None = None
    """Similarity of the two texts, 0-1."""
    recall_at: PositiveInt | None = None
    """Similarity: a match counts if it is among this many nearest texts."""


def write_held_out(folder: Path, items: Sequence[HeldOut]) -> None:
    """Write at most `MAX_ITEMS` validation items into a model's folder."""
    _write(folder / FILE, items, MAX_ITEMS)


def write_test_items(folder: Path, items: Sequence[HeldOut]) -> None:
    """Write at most `MAX_TEST_ITEMS` test items into a model's folder."""
    _write(folder / TEST_FILE, items, MAX_TEST_ITEMS)


def _write(path: Path, items: Sequence[HeldOut], most: int) -> None:
    """Write the items with the lowest hashes, a sample without a seed."""
    lines = {item.model_dump_json(exclude_defaults=True) for item in items}
    chosen = heapq.nsmallest(most, lines, key=lambda line: hashlib.sha256(line.encode()).digest())
    path.write_text("".join(f"{line}\n" for line in chosen), encoding="utf-8")


def read_held_out(folder: Path) -> list[HeldOut]:
    """Read the items that `write_held_out` wrote; an empty list if there is no file.

    Raises:
        ArtifactError: a line is not a held-out item.
    """
    return read_items(folder / FILE)


def read_items(path: Path) -> list[HeldOut]:
    """Read a file of items; an empty list if there is none.

    Raises:
        ArtifactError: a line is not a held-out item.
    """
    if not path.is_file():
        return []
    # Iterate over the file: `splitlines` also splits at U+2028 and others, which JSON leaves inside a string.
    with path.open("rb") as lines:
        return [_item(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _item(line: bytes, place: str) -> HeldOut:
    try:
        return HeldOut.model_validate_json(line)
    except ValidationError as error:
        raise ArtifactError(
            f"{place} is no held-out item in JSON: {line.decode(errors='replace').strip()[:80] or 'an empty line'}",
            do="run `dvc repro finetune` to write it again",
        ) from error
