"""reports/finetune/<task>/examples.json: test items as a person reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

FILE = "examples.json"


@dataclass(frozen=True)
class ShownItem:
    """A test item, what is right, and what the model says."""

    given: Mapping[str, str]
    """What the model was given, by name: `text`, or `question` and `context`, …"""
    actual: str
    predicted: str
    is_right: bool


def write_shown_items(folder: Path, items: Sequence[ShownItem]) -> None:
    content = TypeAdapter(Sequence[ShownItem]).dump_json(items, indent=2)
    (folder / FILE).write_bytes(content + b"\n")
