"""Items of an import in the project: `imports/NAME.jsonl`, one JSON object per line."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from clozeline.records.finetune.scored_items import HeldOut
from clozeline.system.files import replacing_file

FOLDER: Final = "imports"
"""Folder of the items on which INT8 is compared with fp32; like params.yaml it belongs to the project."""


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
