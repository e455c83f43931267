"""Executions of tasks, written down by the process that runs them: nodes import this file, so it imports little."""

import json
from pathlib import Path
from typing import Final

from clozeline.cluster import ledger
from clozeline.cluster.store import RECORD
from clozeline.params.project import Params
from clozeline.params.reading import read_params

PROJECT: Final = Path(__file__).parents[2]
_LOG: Final = "executions.log"
_recorded = ledger._recorded


def recorded(task: ledger._Task) -> ledger.FinishedTask:
    """Do what a ledger does with a task, and write down whether it was recorded before, and whether it ran."""
    was_recorded = (task.path / RECORD).exists()
    record = _recorded(task)
    with (task.path.parents[1] / _LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps([task.name, was_recorded, not record.is_found]) + "\n")
    return record


def executions(folder: Path, name: str) -> list[tuple[str, bool, bool]]:
    """Return the executions of tasks: name, whether it was recorded before, whether it ran."""
    logs = sorted((folder / f"{name}-work").glob(f"*/{_LOG}"))
    return [tuple(json.loads(line)) for log in logs for line in log.read_text().splitlines()]


def repeated(found: list[tuple[str, bool, bool]]) -> list[str]:
    """Return the names of the tasks that ran although they were recorded."""
    return [name for name, was_recorded, has_run in found if was_recorded and has_run]


def params_of_text() -> Params:
    """Return the params of this project, over the text of the drill."""
    found = read_params(PROJECT / "params.yaml")
    changes = {"kind": "files", "path": "texts.jsonl", "text_field": "text"}
    source = found.preprocess.source.model_copy(update=changes)
    preprocess = found.preprocess.model_copy(update={"source": source})
    return found.model_copy(update={"preprocess": preprocess})
