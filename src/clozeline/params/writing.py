"""Params written as YAML: keys in their order, every alias written out."""

from io import StringIO
from typing import Any, TextIO

from ruamel.yaml import YAML


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
