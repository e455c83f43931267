"""Runs the stages of `cases.json`; started by torchrun, or imported."""

import json
import sys
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

from clozeline.evaluation import groups
from clozeline.params import pretraining, tasks


def run(folder: Path) -> None:
    """Run each case: a stage, the class and values of its params, its paths, and its other arguments."""
    for case in json.loads((folder / "cases.json").read_text(encoding="utf-8")):
        room = pretraining if hasattr(pretraining, case["class"]) else tasks
        params = getattr(room, case["class"]).model_validate(case["params"])
        paths = {name: Path(path) for name, path in case["paths"].items()}
        with patch.object(groups, "BATCH_TOKENS", 64):  # so that both processes get batches, one of them one more
            import_module(f"clozeline.stages.{case['stage']}").run(params, **paths, **case["others"])


if __name__ == "__main__":
    run(Path(sys.argv[1]))
