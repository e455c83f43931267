"""Items that a task was chosen by, not trained on, beside its model: what an exported graph of it is held to."""

import hashlib
import heapq
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, FiniteFloat, PositiveInt, ValidationError

from clozeline.errors import ArtifactError

FILE = "held_out.jsonl"
MAX_ITEMS = 512


class EntitySpan(BaseModel):
    """Characters `start` to `end` of a text, and what they name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int
    end: int
    type: str


class HeldOut(BaseModel):
    """One item, and what is right."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    """Or the first text of a pair; of question answering the question."""
    second: str | None = None
    """... the context."""
    right: tuple[str, ...] = ()
    """Labels of the text; of question answering all answers that count, none where there is none; of similarity the
    texts that belong to it.
    """
    entities: tuple[EntitySpan, ...] = ()
    """Of tagging."""
    score: FiniteFloat | None = None
    """Of two texts of similarity: how alike they are, 0-1."""
    recall_at: PositiveInt | None = None
    """Of a text of similarity: a right one is to be among so many that are nearest."""


def write_held_out(folder: Path, items: Sequence[HeldOut]) -> None:
    """Into a model's folder, at most `MAX_ITEMS`: those with the lowest hashes, which is as good as drawn."""
    lines = {item.model_dump_json(exclude_defaults=True) for item in items}
    chosen = heapq.nsmallest(MAX_ITEMS, lines, key=lambda line: hashlib.sha256(line.encode()).digest())
    (folder / FILE).write_text("".join(f"{line}\n" for line in chosen), encoding="utf-8")


def read_held_out(folder: Path) -> list[HeldOut]:
    """What `write_held_out` wrote there; nothing, if there is no such file.

    Raises:
        ArtifactError: naming the line that is no such item.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    # As a file is read, not by `splitlines`: that also ends a line at U+2028 and others, which JSON leaves in a text.
    with path.open("rb") as lines:
        return [_item(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _item(line: bytes, place: str) -> HeldOut:
    try:
        return HeldOut.model_validate_json(line)
    except ValidationError as error:
        raise ArtifactError(
            f"{place} is no held-out item",
            given=line.decode(errors="replace").strip()[:80] or "an empty line",
            expected='a JSON object such as {"text": "…", "right": ["label"]}',
            do="run `dvc repro finetune`, which writes it; or delete the file: other texts are taken then",
        ) from error
