"""Quality of each kind of task on well-known data, fine-tuned from all-MiniLM-L6-v2 by the stage itself.

The tasks are in finetune_table.yaml, written as under `finetune` in params.yaml. The data lie beside the project, or in
the folder that CLOZELINE_BENCHMARK_LABELLED names; without them there is nothing to measure. Arguments select tasks by
name. The output is a readable table, each figure with its 95 % interval beside a simple method and a trivial answer,
then one line of JSON. There is no other side. A task takes about ten minutes on one core; sts2016 takes one,
squad2_subset fifty.
"""

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ruamel.yaml import YAML

from comparison.finetuning import params_of, run_stage
from comparison.frame import available_cores, describe_machine, options
from comparison.labelled import labelled
from comparison.sentences import weights
from comparison.stages import params_tree

_LOG = logging.getLogger(__name__)
TASKS = Path(__file__).with_suffix(".yaml")
_HEADER = "| task | train / test | figure | 95 % interval | simple method | trivial answer |\n|---|---|---|---|---|---|"


def main() -> None:
    tasks: Mapping[str, Mapping[str, Any]] = YAML(typ="safe").load(TASKS)
    parser = options(__doc__, threads=available_cores())
    parser.add_argument("names", nargs="*", metavar="TASK", help=f"of: {', '.join(tasks)}")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in tasks]:
        parser.error(f"there is no task {unknown[0]!r}; there are: {', '.join(tasks)}")
    folder = labelled()
    if folder is None:
        _LOG.warning("there is no labelled data beside the project, and CLOZELINE_BENCHMARK_LABELLED names none")
    names = chosen.names or list(tasks)
    figures = {} if folder is None else {name: measured(name, tasks[name], folder, chosen.threads) for name in names}
    sys.stdout.write("\n".join([_HEADER, *(row(name, of) for name, of in figures.items())]) + "\n")
    line = {"name": "finetune_table", "tasks": figures, "machine": describe_machine(chosen.threads)}
    sys.stdout.write(json.dumps(line) + "\n")


def measured(name: str, task: Mapping[str, Any], folder: Path, num_threads: int) -> dict[str, Any]:
    """Return the content of metrics/finetune/<task>.json."""
    data = folder / task["data"]
    tree = params_tree({})
    params = params_of({**task, "data": str(data), "num_threads": num_threads})
    with TemporaryDirectory() as out:
        return run_stage(name, params, tree["seed"], weights(), data, Path(out))


def row(name: str, figures: Mapping[str, Any]) -> str:
    """Return a line of the table."""
    said = figures["headline"]
    cells = [
        name,
        f"{figures['num_train']:,} / {figures['num_test']:,}",
        f"{said['metric']} **{said['value']:.3f}**",
        f"{said['low']:.3f} to {said['high']:.3f}",
        f"{said['baseline']}: {said['baseline_value']:.3f}",
        f"{said['trivial']}: {said['trivial_value']:.3f}",
    ]
    return f"| {' | '.join(cells)} |"
