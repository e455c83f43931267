"""Reads README.md of a model folder as people and the hub read it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard


@dataclass(frozen=True)
class Card:
    title: str
    facts: dict[str, Any]
    sections: dict[str, str]
    """Markdown by heading, in the order of the card."""


def card_in(folder: Path) -> Card:
    card = ModelCard((folder / "README.md").read_text(encoding="utf-8"))
    title, *sections = card.text.split("\n## ")
    parted = (section.partition("\n\n") for section in sections)
    told = {heading: body.strip() for heading, _, body in parted}
    assert len(told) == len(sections), "each heading once"
    return Card(title.strip().removeprefix("# "), card.data.to_dict(), told)
