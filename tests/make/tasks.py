"""Params of small tasks, and inputs of a task whose pre-training text contains none of its texts."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clozeline.params.reading import read_params
from clozeline.params.tasks import SECTIONS, FinetuneParams, whole_task
from clozeline.tasks.task import TaskInputs
from tests.clean_text import write_clean_text

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml")


def params_of(kind: str, **changes: object) -> Any:
    """Return the params of a task by the defaults of the project, on one thread, with `changes`."""
    task = {"kind": kind, "data": "x", "num_threads": 1, **changes}
    return SECTIONS[kind].model_validate(whole_task(task, PARAMS.finetune_defaults))


def write_rows(path: Path, rows: Iterable[object]) -> Path:
    """Write JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def inputs_of(params: FinetuneParams, encoder: Path, data: Path, seed: int = 1) -> TaskInputs:
    seen = data.parent / "seen.parquet"
    if not seen.exists():
        write_clean_text(seen, ["nothing"])
    return TaskInputs(params, seed, encoder, data, seen)
