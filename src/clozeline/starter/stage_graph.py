"""Stages of our own dvc.yaml. The package carries it by another name: DVC reads any dvc.yaml in a project."""

from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

FILE: Final = Path(__file__).with_name("stages.yaml")
PIN: Final = "requirements.lock"
"""Code of the stages in another project: a change of the pinned Clozeline runs all of them again."""
_CODE: Final = "src/"


def own_graph() -> Any:
    """Return the content of dvc.yaml."""
    return YAML(typ="safe").load(FILE)


def graph_elsewhere() -> dict[str, Any]:
    """Return the content of dvc.yaml for a project without our code and with a short params.yaml."""
    graph = own_graph()
    for stage in graph["stages"].values():
        body = stage.get("do", stage)
        data = [dep for dep in body["deps"] if not dep.startswith(_CODE)]
        body["deps"] = sorted({*data, PIN})
    # A project may not have imported a model yet; DVC lays its params.yaml over these values.
    return {"vars": [{"imports": {}}], **graph}
