"""From text to packages: each function calls stages of dvc.yaml, so its files have the bytes that `dvc repro` gives."""

import os
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clozeline.api.config import Config
from clozeline.api.own_data import labelled_in, texts_in
from clozeline.api.run import LOCK, PARAMS, Run, call, opened, written
from clozeline.artifacts.evaluate.encoder_metrics import EncoderMetrics
from clozeline.artifacts.finetune.task_metrics import TaskMetrics
from clozeline.errors import ParamsError
from clozeline.params import FROM_CHAMPION

if TYPE_CHECKING:
    from clozeline.training.callbacks import Callback

_TO_AN_ENCODER: Final = ("snapshot", "preprocess", "tokenize", "pretrain")
_LOCAL: Final = ("files", "wikipedia-xml")
"""Kinds of source whose `path` is the text."""
_USUAL_FOLDER: Final = "clozeline-run"
Texts = Iterable[str] | str | PathLike[str]
Labelled = Iterable[Mapping[str, Any]] | str | PathLike[str]


def pretrain(
    texts: Texts | None = None,
    config: Config | None = None,
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
    params = Config() if config is None else config.copy()
    if texts is not None:
        params["preprocess"]["source"] = texts_in(texts, run.folder)
    elif params.preprocess.source.kind in _LOCAL and params.preprocess.source.url is None:
        params.preprocess.source.path = os.path.relpath(params.preprocess.source.path, run.folder)
    params.finetune = {}
    if params.export.models:
        params.export.models = {run.name: _encoder_of(params)}
    _refuse_champion(params)
    written(run, params)
    for stage in _TO_AN_ENCODER:
        more = {"callbacks": callbacks} if stage == "pretrain" else {}
        call(stage, run, {"preprocess.source.path": params.preprocess.source.path}, **more)
    return run


def evaluate(run: Run | str | PathLike[str], config: Config | None = None) -> EncoderMetrics:
    """Measure the encoder of a run on all of its validation text, each token hidden once.

    Args:
        run: what `pretrain` returned, or its folder.
        config: its section `evaluate` is used; None: the params of the run.

    Raises:
        ArtifactError: the encoder is missing or damaged.
    """
    found = _with(opened(run), config, "evaluate")
    call("evaluate", found, {})
    return EncoderMetrics.read(found.folder / "metrics" / "evaluate.json")


def finetune(
    run: Run | str | PathLike[str],
    data: Labelled,
    *,
    kind: str,
    name: str | None = None,
    config: Config | None = None,
    **knobs: Any,
) -> Run:
    """Fine-tune the encoder of a run for a labelled task, and compare it with simple methods on held-out items.

    `figures` of the returned run has the test figures.

    Args:
        run: what `pretrain` returned, or its folder.
        data: records with the fields of the kind of task (`text` and `label` of a classification), or the path of a
            file or folder with them.
        kind: kind of task: classification, tagging, question_answering, similarity or zero_shot.
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


def export(run: Run | str | PathLike[str], config: Config | None = None) -> Path:
    """Export the model of a run to ONNX, in fp32 and, if that is proven to answer alike, INT8. Return the package.

    Args:
        run: what `pretrain` or `finetune` returned, or the folder of a run.
        config: its section `export` is used; None: the params of the run.

    Raises:
        ArtifactError: the model is missing, or its family cannot be exported.
        GateError: the graph does not compute what the model computes.
    """
    found = opened(run)
    models = {found.name: _encoder_of(found.config), **found.config.export.models}
    found = _with(found, config, "export", keeping={"models": models})
    call("export", found, {"key": found.name, "item": models[found.name]})
    return found.folder / "dist" / found.name


def _encoder_of(params: Config) -> str:
    return "encoder/generator" if params.pretrain.objective == "rtd" else "encoder"


def _with(run: Run, config: Config | None, section: str, keeping: Mapping[str, Any] | None = None) -> Run:
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
            f"{folder} is no folder of a run, but holds "
            + ("a project with a dvc.yaml" if (folder / "dvc.yaml").exists() else "other files"),
            do='choose an empty or new one: `pretrain(texts, config, folder="my-run")`; in a project: `clozeline run`',
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _refuse_champion(params: Config) -> None:
    if params.pretrain.start == FROM_CHAMPION:
        raise ParamsError(
            f"`pretrain.start: {FROM_CHAMPION}`: a run from Python does not continue from the live model",
            do="use `clozeline run` in the project, or set it to null, the folder of an encoder, or a name on the hub",
        )
