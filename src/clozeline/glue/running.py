"""A run of GLUE: which tasks there are, their training, and their figures. All faults of data and params come first."""

import logging
from collections.abc import Sequence
from pathlib import Path

from clozeline.errors import DataError, ParamsError
from clozeline.glue.figures import Figures, figures_of, summary
from clozeline.glue.files import TaskFiles, found_in, write_records
from clozeline.glue.tasks import glue_tasks
from clozeline.glue.training import GlueRun, section_of, trained
from clozeline.params import Params
from clozeline.params.defaults import default_tree
from clozeline.params.reading import params_in, read_tree
from clozeline.params.recipes import laid_over

_LOG = logging.getLogger(__name__)
PARAMS = Path("params.yaml")
OWN_ENCODER = Path("models/encoder")
_RATE_OF_PUBLISHED = 5e-5
"""Learning rate of a published encoder (Devlin et al. 2018, appendix A.3): that of params.yaml is for ours."""
FIGURES = "glue.json"
_SET_HERE = {"kind", "data", "hub", "splits", "num_seeds"}


def run(asked: GlueRun) -> tuple[Figures, Path]:
    """Fine-tune and evaluate each task from each seed; return the figures, and the file that they were written to.

    Raises:
        ArtifactError: there is no such encoder.
        DataError: the data have none of the tasks, or cannot be read.
        ParamsError: a knob is unknown or does not fit the encoder.
    """
    found = _found(asked)
    _ = asked.encoder  # a missing one is told before the data are converted
    for files in found:
        num = write_records(files, asked.data_of(files.task), asked.limit)
        _LOG.info("%s: %s", files.task.title, ", ".join(f"{rows:,} {part} rows" for part, rows in num.items()))
    params = _params(asked, found)
    seeds = range(params.seed, params.seed + asked.num_seeds)
    measured = []
    for files in found:
        section, family = params.finetune[files.task.name], params.pretrain.model.family
        of_seeds = [trained(files.task, section, seed, asked, family) for seed in seeds]
        measured.append(figures_of(files.task, of_seeds))
        _LOG.info("%s: score %.3f", files.task.title, measured[-1].score)
    figures = summary(asked.model, seeds, asked.limit, measured)
    out = asked.work / asked.model.strip("./").replace("/", "-") / FIGURES
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(figures.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return figures, out


def _found(asked: GlueRun) -> list[TaskFiles]:
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


def _params(asked: GlueRun, found: Sequence[TaskFiles]) -> Params:
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
        files.task.name: section_of(files.task, tree["presets"][files.task.preset], asked.data_of(files.task), knobs)
        for files in found
    }
    return params_in({**tree, "finetune": sections, "export": {**tree["export"], "models": {}}}, PARAMS)


def missing_titles(figures: Figures) -> list[str]:
    """Return the titles of the tasks that GLUE's average lacks."""
    return [glue_tasks()[name].title for name in figures.missing]
