"""Params written as YAML: keys in their order, every alias written out."""

from io import StringIO
from pathlib import Path
from typing import Any, Final, TextIO

from ruamel.yaml import YAML

from clozeline.params.project import Params
from clozeline.storage.atomic import replacing_file

_LAYERS: Final = {"recipes", "presets", "finetune_defaults"}
"""Sections that other sections are made of."""


def write_complete(params: Params, path: Path) -> None:
    """Write the params as the stages take them: the recipe is laid over `pretrain`, and each task is complete.

    DVC compares their values: an edit of a default, a recipe or a preset runs the stages whose values it changes. A
    file that says the same already is not touched.

    Raises:
        StorageError: the disk is full.
    """
    text = StringIO()
    write_yaml(params.model_dump(mode="json", exclude=_LAYERS), text)
    if path.is_file() and path.read_text(encoding="utf-8") == text.getvalue():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(path) as beside:
        beside.write_text(text.getvalue(), encoding="utf-8")


def write_yaml(tree: Any, stream: TextIO) -> None:
    """Write `tree` with a line for each key."""
    _yaml(on_one_line=False).dump(tree, stream)


def on_one_line(value: Any) -> str:
    """Return the value as YAML on one line."""
    yaml, stream = _yaml(on_one_line=True), StringIO()
    yaml.width = 1 << 20
    yaml.dump(value, stream)
    return stream.getvalue().removesuffix("...\n").strip()


def _yaml(*, on_one_line: bool) -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = on_one_line
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # None in its class
    yaml.representer.ignore_aliases = lambda data: True
    return yaml
