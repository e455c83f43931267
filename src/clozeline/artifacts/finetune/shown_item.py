"""reports/finetune/<task>/examples.json: readable test items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

FILE = "examples.json"


@dataclass(frozen=True)
class ShownItem:
    """A test item with its right and its predicted answer."""

    given: Mapping[str, str]
    """Input of the model, by name: `text`, or `question` and `context`, …"""
    actual: str
    predicted: str
    is_right: bool


def write_shown_items(folder: Path, items: Sequence[ShownItem]) -> None:
    content = TypeAdapter(Sequence[ShownItem]).dump_json(items, indent=2)
    (folder / FILE).write_bytes(content + b"\n")
