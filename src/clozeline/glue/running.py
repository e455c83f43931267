"""A run of GLUE: which tasks there are, their training, and their figures. All faults of data and params come first."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clozeline.errors import ArtifactError, DataError, ParamsError
from clozeline.glue.figures import Figures, TaskFigures, figures_of, summary
from clozeline.glue.files import TaskFiles, found_in, write_records
from clozeline.glue.tasks import TASKS, GlueTask
from clozeline.glue.training import Place, section_of, together, trained
from clozeline.params import FinetuneParams, Params
from clozeline.params.defaults import default_tree
from clozeline.params.reading import params_in, read_tree
from clozeline.params.recipes import laid_over
from clozeline.tasks.published import folder_of

_LOG = logging.getLogger(__name__)
PARAMS = Path("params.yaml")
OWN_ENCODER = Path("models/encoder")
_RATE_OF_PUBLISHED = 5e-5
"""Learning rate of a published encoder (Devlin et al. 2018, appendix A.3): that of params.yaml is for ours."""
FIGURES = "glue.json"
_SET_HERE = {"kind", "data", "hub", "splits", "num_seeds"}


@dataclass(frozen=True)
class Asked:
    """What a run of GLUE is asked to do."""

    data: Path
    model: str
    tasks: Sequence[GlueTask]
    is_each_needed: bool
    """Whether each of `tasks` has to be in `data`; otherwise those that are there."""
    num_seeds: int
    limit: int | None
    knobs: Mapping[str, Any]
    """Values for the sections of the tasks, as under `finetune` in params.yaml."""
    work: Path


def run(asked: Asked) -> tuple[Figures, Path]:
    """Fine-tune and evaluate each task from each seed; return the figures, and the file that they were written to.

    Raises:
        ArtifactError: there is no such encoder.
        DataError: the data have none of the tasks, or cannot be read.
        ParamsError: a knob is unknown or does not fit the encoder.
    """
    found = _found(asked)
    place = Place(_encoder(asked.model), asked.work)
    for files in found:
        num = write_records(files, place.data_of(files.task), asked.limit)
        _LOG.info("%s: %s", files.task.title, ", ".join(f"{rows:,} {part} rows" for part, rows in num.items()))
    params = _params(asked, place, found)
    place = replace(place, family=params.pretrain.model.family)
    seeds = range(params.seed, params.seed + asked.num_seeds)
    measured = [_measured(files.task, params.finetune[files.task.name], seeds, place) for files in found]
    figures = summary(asked.model, seeds, asked.limit, measured)
    out = asked.work / asked.model.strip("./").replace("/", "-") / FIGURES
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(figures.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return figures, out


def _measured(task: GlueTask, params: FinetuneParams, seeds: Sequence[int], place: Place) -> TaskFigures:
    of_seeds = [trained(task, params, seed, place) for seed in seeds]
    found = figures_of(task, together(of_seeds), of_seeds[0].num_train)
    _LOG.info("%s: score %.3f", task.title, found.score)
    return found


def _found(asked: Asked) -> list[TaskFiles]:
    if not asked.data.is_dir():
        raise DataError(
            f"there is no folder {asked.data}",
            given=asked.data,
            expected="a folder with a folder for each task of GLUE",
            do="correct the path; with a network: `hf download nyu-mll/glue --repo-type dataset --local-dir FOLDER`",
        )
    found = {task.name: found_in(asked.data, task) for task in asked.tasks}
    there = [files for files in found.values() if files is not None]
    missing = [name for name, files in found.items() if files is None]
    if not there or (missing and asked.is_each_needed):
        raise DataError(
            f"{asked.data} lacks {'every task' if not there else ', '.join(missing)} of GLUE",
            given=f"folders: {', '.join(sorted(it.name for it in asked.data.iterdir() if it.is_dir())) or 'none'}",
            expected=f"folders named as in the official archive or on the hub, of: "
            f"{', '.join(f'{task.title} or {task.name}' for task in asked.tasks)}",
            do="rename the folders, or name other tasks with --tasks",
        )
    return there


def _encoder(name: str) -> Path:
    folder = folder_of(name, None, "the model of --model")
    if not (folder / "config.json").is_file():
        raise ArtifactError(
            f"{folder} holds no model",
            given=f"no {folder / 'config.json'}",
            expected="the encoder of a project, or the folder or hub name of a published one",
            do="run `clozeline run` first, or name a model with --model",
        )
    return folder


def _params(asked: Asked, place: Place, found: Sequence[TaskFiles]) -> Params:
    """Return the params with a section for each task: those of params.yaml, or our defaults outside a project."""
    tree = read_tree(PARAMS) if PARAMS.is_file() else default_tree()
    is_own = Path(asked.model) == OWN_ENCODER
    if ours := sorted(asked.knobs.keys() & _SET_HERE):
        raise ParamsError(
            "--set changes what the command itself sets",
            given=", ".join(ours),
            expected="knobs of fine-tuning, such as `epochs`",
            do="use --seeds for the number of trainings, and FOLDER for the data",
        )
    knobs = asked.knobs if is_own else laid_over({"optimizer": {"learning_rate": _RATE_OF_PUBLISHED}}, asked.knobs)
    sections = {
        files.task.name: section_of(files.task, tree["presets"][files.task.preset], place.data_of(files.task), knobs)
        for files in found
    }
    return params_in({**tree, "finetune": sections, "export": {**tree["export"], "models": {}}}, PARAMS)


def missing_titles(figures: Figures) -> list[str]:
    """Return the titles of the tasks that GLUE's average lacks."""
    return [TASKS[name].title for name in figures.missing]
