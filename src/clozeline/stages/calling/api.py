"""The pipeline from Python: each function calls stages of dvc.yaml, so its files have the bytes that `dvc repro` gives.

A run is a folder with everything that the stages made, laid out as a project. A notebook shows it as the chapters of
the report that its files fill.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.metadata import distributions
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from clozeline.params import editing, pretraining, reading
from clozeline.params.text import PATH_OR_URL
from clozeline.records import evaluation, record
from clozeline.records.finetune.task_metrics import TaskMetrics
from clozeline.reporting import page
from clozeline.reporting.run import ReportedRun as Reported
from clozeline.reporting.run import RunFiles
from clozeline.stages.calling.calls import arguments_for, labelled_in, own_graph, section_of, stage_named, texts_in
from clozeline.system.errors import ClozelineError, ParamsError
from clozeline.system.files import replacing_file
from clozeline.tracking.past_runs import PastRuns

if TYPE_CHECKING:
    from clozeline.training.state import Callback


PARAMS = "params.yaml"
LOCK = "requirements.lock"
_PLACEHOLDER = re.compile(r"\$\{([\w.]+)\}")
_TO_AN_ENCODER = ("snapshot", "preprocess", "tokenize", "pretrain")
_USUAL_FOLDER = "clozeline-run"
Texts = Iterable[str] | str | PathLike[str]
Labelled = Iterable[Mapping[str, Any]] | str | PathLike[str]
_HEIGHT_PIXELS = 720


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
    def config(self) -> editing.Config:
        """A copy of the params that the run was made with.

        Raises:
            ParamsError: the folder has no params.yaml, or it has faults.
        """
        return editing.Config(self.folder / PARAMS)

    @property
    def figures(self) -> Mapping[str, Any]:
        """What the stages measured: of the encoder's training, and of its evaluation if it has been evaluated; of a
        task its test figures.
        """
        names = [f"finetune/{self.task}"] if self.task else ["pretrain", "evaluate"]
        files = [self.folder / "metrics" / f"{name}.json" for name in names]
        return {name: value for file in files if file.is_file() for name, value in record.MetricFile.read(file)}

    def of_task(self, task: str) -> Self:
        return replace(self, task=task)

    def _repr_html_(self) -> str:
        return show(self)._repr_html_()


def written(run: Run, config: editing.Config) -> None:
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
        raise reading.in_params(error, run.folder / PARAMS, place, arguments["params"], "config") from error


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


def pretrain(
    texts: Texts | None = None,
    config: editing.Config | None = None,
    *,
    folder: str | PathLike[str] = _USUAL_FOLDER,
    callbacks: Iterable["Callback"] = (),
) -> Run:
    """Train an encoder on texts: copy, clean, tokenize, train. The same call continues a killed training.

    Args:
        texts: strings, one for each document; or the path of a file or folder; None: the source that `config` names.
        config: params; None: the defaults, which train for a quarter of an hour.
        folder: folder of the run, made if it is missing. An earlier run there is replaced.
        callbacks: called at each point of the training's curve (nats per target) and at each validation pass.

    Raises:
        DataError: there are no texts, too few, or they cannot be read.
        ParamsError: keys of `config` contradict each other or cannot be met here, or `folder` is not of a run.
        TrainingError: the loss is not finite, or memory ran out.
    """
    run = Run(_own_folder(Path(folder)))
    params = editing.Config() if config is None else config.copy()
    if texts is not None:
        params["preprocess"]["source"] = texts_in(texts, run.folder)
    elif params.preprocess.source.kind in PATH_OR_URL and params.preprocess.source.url is None:
        params.preprocess.source.path = os.path.relpath(params.preprocess.source.path, run.folder)
    params.finetune = {}
    if params.export.models:
        params.export.models = {run.name: pretraining.exported_folder(params.pretrain.objective)}
    if params.pretrain.start == pretraining.FROM_CHAMPION:
        raise ParamsError(
            f"`pretrain.start: {pretraining.FROM_CHAMPION}`: a run from Python does not continue from the live model",
            do="use `clozeline run` in the project, or set it to null, the folder of an encoder, or a name on the hub",
        )
    written(run, params)
    for stage in _TO_AN_ENCODER:
        more = {"callbacks": callbacks} if stage == "pretrain" else {}
        call(stage, run, {"preprocess.source.path": params.preprocess.source.path}, **more)
    return run


def evaluate(run: Run | str | PathLike[str], config: editing.Config | None = None) -> evaluation.EncoderMetrics:
    """Measure the encoder of a run on all of its validation text, each token hidden once.

    Args:
        run: what `pretrain` returned, or its folder.
        config: its section `evaluate` is used; None: the params of the run.

    Raises:
        ArtifactError: the encoder is missing or damaged.
    """
    found = _with(opened(run), config, "evaluate")
    call("evaluate", found, {})
    return evaluation.EncoderMetrics.read(found.folder / "metrics" / "evaluate.json")


def finetune(
    run: Run | str | PathLike[str],
    data: Labelled,
    *,
    kind: str,
    name: str | None = None,
    config: editing.Config | None = None,
    **knobs: Any,
) -> Run:
    """Fine-tune the encoder of a run for a labelled task, and compare it with simple methods on held-out items.

    `figures` of the returned run has the test figures.

    Args:
        run: what `pretrain` returned, or its folder.
        data: records with the fields of the kind of task (`text` and `label` of a classification), or the path of a
            file or folder with them.
        kind: kind of task, as in docs/tasks.md: `classification`, …
        name: name of the task; None: its kind.
        config: its section `finetune_defaults` is used; None: the params of the run.
        knobs: knobs of the task, as under `finetune` in params.yaml: `epochs=5`, `label_field="topic"`.

    Raises:
        DataError: the records cannot be read, or are too few.
        ParamsError: a knob is unknown, or does not apply to the encoder.
        TrainingError: the loss is not finite.
    """
    found = _with(opened(run), config, "finetune_defaults").of_task(name or kind)
    params = found.config
    path = labelled_in(data, found.folder, found.name)
    params["finetune"][found.name] = {"kind": kind, "data": path, **knobs}
    params.export.models[found.name] = f"finetuned/{found.name}"
    assert params.checked
    written(found, params)
    call("finetune", found, {"key": found.name, "item.data": path})
    TaskMetrics.read(found.folder / "metrics" / "finetune" / f"{found.name}.json")
    return found


def export(run: Run | str | PathLike[str], config: editing.Config | None = None) -> Path:
    """Export the model of a run to ONNX, in fp32 and, if that is proven to answer alike, INT8. Return the package.

    Args:
        run: what `pretrain` or `finetune` returned, or the folder of a run.
        config: its section `export` is used; None: the params of the run.

    Raises:
        ArtifactError: the model is missing, or its family cannot be exported.
        GateError: the graph does not compute what the model computes.
    """
    found = opened(run)
    models = {found.name: pretraining.exported_folder(found.config.pretrain.objective), **found.config.export.models}
    found = _with(found, config, "export", keeping={"models": models})
    call("export", found, {"key": found.name, "item": models[found.name]})
    return found.folder / "dist" / found.name


def _with(run: Run, config: editing.Config | None, section: str, keeping: Mapping[str, Any] | None = None) -> Run:
    """Write a section of `config` into the params of a run."""
    if config is not None:
        params = run.config
        params[section] = config[section]
        for key, value in (keeping or {}).items():
            params[section][key] = value
        written(run, params)
    return run


def _own_folder(folder: Path) -> Path:
    """Return `folder`, made if it is missing.

    Raises:
        ParamsError: it holds something else than a run.
    """
    is_run = (folder / PARAMS).exists() and (folder / LOCK).exists() and not (folder / "dvc.yaml").exists()
    is_empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_run and not is_empty:
        raise ParamsError(
            f"{folder} holds a project or other files, and is no folder of a run",
            do='choose an empty or new one: `pretrain(texts, config, folder="my-run")`; in a project: `clozeline run`',
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class Shown:
    """A page about a run. A notebook displays it; `save` writes it to a file."""

    html: str

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page to a file, which needs no network and no server."""
        with replacing_file(Path(path)) as file:
            file.write_text(self.html, encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, so that its style does not touch the notebook's."""
        style = f"width:100%;height:{_HEIGHT_PIXELS}px;border:0"
        return f'<iframe title="Clozeline" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


def show(run: Run | str | PathLike[str]) -> Shown:
    """Return a page about a run: curves of its training, hidden words with the encoder's guesses, figures of a task.

    Hidden words and figures of the encoder are there once `evaluate` has run.

    Raises:
        ParamsError: there is no run in the folder.
    """
    found = opened(run)
    params = found.config.checked
    reported = Reported(
        files=RunFiles(found.folder),
        tasks=(found.task,) if found.task else (),
        packages={},
        released=lambda package: None,
        past=PastRuns,
        machine={},
        built_at=datetime.now(UTC),
        is_causal=params.pretrain.objective == "clm",
    )
    is_evaluated = (found.folder / "metrics" / "evaluate.json").is_file()
    of_encoder = ("encoder", "training", "examples") if is_evaluated else ("training",)
    chapters = ("tasks",) if found.task else of_encoder
    return Shown(page.build(reported, chapters).html)
