"""The project's own files, which hold the defaults of params and the graph of stages."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

_PROJECT = Path(__file__).parents[3]


def project_tree(name: str) -> Any:
    """Return the content of `params.yaml` or `dvc.yaml`."""
    return YAML(typ="safe").load(_PROJECT / name)
