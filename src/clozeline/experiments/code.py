"""The code behind the result of a stage, as dvc.yaml lists it."""

from pathlib import Path
from typing import Final

from clozeline.starter.stage_graph import own_graph
from clozeline.storage.fingerprints import code_of

_PACKAGE: Final = "src/clozeline/"


def code_of_stage(stage: str) -> list[Path]:
    """Return the files of the package that the stage depends on."""
    entry = own_graph()["stages"][stage]
    deps = entry.get("do", entry)["deps"]
    return code_of(dep.removeprefix(_PACKAGE) for dep in deps if dep.startswith(_PACKAGE))
