"""A run: the folder with everything that the stages made, laid out as a project."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import distributions
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

from clozeline.api.config import Config
from clozeline.api.knobs import in_params
from clozeline.api.stage_call import arguments_for, section_of, stage_named
from clozeline.artifacts.record import MetricFile
from clozeline.errors import ClozelineError, ParamsError
from clozeline.starter.stage_graph import own_graph
from clozeline.storage.atomic import replacing_file

PARAMS: Final = "params.yaml"
LOCK: Final = "requirements.lock"
_PLACEHOLDER = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class Run:
    """A trained encoder with its text, tokenizer and figures in `folder`, or a task that was fine-tuned from it.

    The folder is laid out as a project: params.yaml, and the paths of dvc.yaml. In a notebook a run shows itself, as
    `show` does.
    """

    folder: Path
    task: str | None = None
    """Name of the fine-tuned task; None: the encoder itself."""

    @property
    def name(self) -> str:
        """Name of the model in the folder `dist`."""
        return self.task or "encoder"

    @property
    def model(self) -> Path:
        """Folder of the model: what stock transformers loads."""
        return self.folder / "models" / self.config.export.models[self.name]

    @property
    def config(self) -> Config:
        """A copy of the params that the run was made with.

        Raises:
            ParamsError: the folder has no params.yaml, or it has faults.
        """
        return Config(self.folder / PARAMS)

    @property
    def figures(self) -> Mapping[str, Any]:
        """What the stages measured: of the encoder's training, and of its evaluation if it has been evaluated; of a
        task its test figures.
        """
        names = [f"finetune/{self.task}"] if self.task else ["pretrain", "evaluate"]
        files = [self.folder / "metrics" / f"{name}.json" for name in names]
        return {name: value for file in files if file.is_file() for name, value in MetricFile.read(file)}

    def of_task(self, task: str) -> Self:
        return replace(self, task=task)

    def _repr_html_(self) -> str:
        from clozeline.api.showing import show

        return show(self)._repr_html_()


def written(run: Run, config: Config) -> None:
    """Write the params of a run, and the packages of this environment in place of its locks."""
    config.write(run.folder / PARAMS)
    installed = {f"{one.metadata['Name']}=={one.version}" for one in distributions()}
    lines = "".join(f"{line}\n" for line in sorted(installed, key=str.lower))
    for name in (LOCK, "corpus.lock"):  # what an export names, and what the source `python-docs` reads
        with replacing_file(run.folder / name) as file:
            file.write_text(lines, encoding="utf-8")


def call(stage: str, run: Run, values: Mapping[str, str], **more: Any) -> None:
    """Run one stage in the folder of `run`, with the paths of dvc.yaml and the params of the folder.

    Args:
        stage: a stage of dvc.yaml.
        run: its folder has params.yaml.
        values: values of the placeholders in its command.
        more: arguments that no command can give.

    Raises:
        ClozelineError: as the stage; the message names keys of the config.
    """
    params = run.config.checked
    function = stage_named(stage)
    texts = [_PLACEHOLDER.sub(lambda found: values[found[1]], text) for text in _command(stage)]
    arguments = arguments_for(function, stage, params, texts, root=run.folder)
    try:
        function(**arguments, **more)
    except ClozelineError as error:
        place = ".".join(filter(None, (section_of(stage), arguments.get("task"))))
        raise in_params(error, run.folder / PARAMS, place, arguments["params"], "config") from error


@cache
def _command(stage: str) -> Sequence[str]:
    """Return the arguments of the stage's command in dvc.yaml."""
    written = own_graph()["stages"][stage]
    _, _, arguments = written.get("do", written)["cmd"].partition(f" {stage} ")
    return tuple(arguments.split())


def opened(run: Run | str | PathLike[str]) -> Run:
    """Return the run in a folder.

    Raises:
        ParamsError: there is none.
    """
    found = run if isinstance(run, Run) else Run(Path(run))
    if not (found.folder / PARAMS).is_file():
        raise ParamsError(
            f"there is no run of `clozeline.pretrain` in {found.folder}",
            do='run `run = clozeline.pretrain(texts, config, folder="my-run")` first',
        )
    return found
