"""Calls of stages: the arguments that dvc.yaml writes, as the parameters of the function that is the stage.

Texts and labelled records of the caller are written into the folder of a run, or found where they are. The package
carries our own dvc.yaml by another name: DVC reads any dvc.yaml in a project.
"""

import importlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from clozeline.params.project import Params
from clozeline.params.text import UNSET_SOURCE
from clozeline.system import errors, files

# Section of params.yaml by stage, where the stage has none of its own name.
_SECTIONS: Mapping[str, str] = {"snapshot": "preprocess", "import": "imports"}
# Parameters that no command can give.
_FROM_PYTHON = {"before_first_step", "callbacks"}
_FIELD = "text"
_STARTER = Path(__file__).parents[2] / "starter"
FILE = _STARTER / "stages.yaml"
# Code of the stages in another project: a change of the pinned Clozeline runs all of them again.
PIN = "requirements.lock"
_CODE = "src/"


def stage_named(name: str) -> Callable[..., None]:
    """Return the function `run` of a stage.

    Raises:
        ParamsError: there is no such stage.
    """
    known = sorted(file.stem for file in Path(__file__).parents[1].glob("[!_]*.py"))
    if name not in known:
        raise errors.ParamsError(
            f"there is no stage {name}, only {', '.join(known)}", do="run `dvc stage list` to see what dvc.yaml calls"
        )
    run: Callable[..., None] = importlib.import_module(f"clozeline.stages.{name}").run
    return run


def arguments_for(
    run: Callable[..., None],
    name: str,
    params: Params,
    texts: Sequence[str],
    *,
    start: Path | None = None,
    root: Path = Path(),
) -> dict[str, Any]:
    """Match `name=value` texts to the parameters of `run`, the stage `name`: paths by name, params by section.

    Args:
        start: folder of the encoder that start.lock names, which takes the place of that file.
        root: folder of the relative paths.

    Raises:
        ParamsError: the texts are not those that the stage takes, or its task has no params.
    """
    given = dict(text.partition("=")[::2] for text in texts)
    section = getattr(params, section_of(name))
    selects = {"task"} if isinstance(section, dict) else set()
    if isinstance(section, dict):
        section = _task_section(section, given.get("task"), name)
    known: dict[str, Any] = {
        "params": section,
        "seed": params.seed,
        "family": params.pretrain.model.family,
        "export": params.export,
    }
    wanted = {key: one for key, one in inspect.signature(run).parameters.items() if key not in _FROM_PYTHON}
    readers: dict[object, Callable[[str], object]] = {Path: root.joinpath, int | None: int}
    paths = {key: readers.get(wanted[key].annotation, str)(text) for key, text in given.items() if key in wanted}
    of_start = {"start": start} if "start" in paths else {}
    arguments = {key: value for key, value in (known | paths | of_start).items() if key in wanted}
    required = {key for key, parameter in wanted.items() if parameter.default is parameter.empty}
    if set(given) - set(wanted) - selects or required - set(arguments):
        takes = " ".join(f"{key}=…" for key in wanted if key not in known)
        raise errors.ParamsError(
            f"stage `{name}` takes {takes}, and got {' '.join(texts) or 'nothing'}",
            do=f"correct the `cmd` of stage `{name}` in dvc.yaml",
        )
    return arguments


def section_of(stage: str) -> str:
    """Return the section of params.yaml that a stage takes."""
    return _SECTIONS.get(stage, stage)


def _task_section(sections: dict[str, Any], task: str | None, name: str) -> Any:
    if task not in sections:
        raise errors.ParamsError(
            f"params.yaml has {', '.join(sorted(sections)) or 'nothing'} for stage `{name}`, not task={task or '…'}",
            do=f"add a section `{name}.{task or '…'}` to params.yaml, or correct the name",
        )
    return sections[task]


def texts_in(texts: Iterable[str] | str | PathLike[str], folder: Path) -> dict[str, Any]:
    """Return the source of a run's text: the given path, or a file in `folder` with the given strings.

    Raises:
        DataError: there are no texts, one of them is no string, or there is no such path.
    """
    if isinstance(texts, str | PathLike):
        return {**UNSET_SOURCE, "kind": "files", "path": _path_from(folder, texts)}
    name = "texts.jsonl"
    _write(folder / name, ({_FIELD: _text(number, text)} for number, text in enumerate(texts)), "texts")
    return {**UNSET_SOURCE, "kind": "files", "path": name, "text_field": _FIELD}


def labelled_in(data: Iterable[Mapping[str, Any]] | str | PathLike[str], folder: Path, task: str) -> str:
    """Return the path, from `folder`, of the labelled data: the given one, or a file with the given records.

    Raises:
        DataError: there are no records, one of them is no record, or there is no such path.
    """
    if isinstance(data, str | PathLike):
        return _path_from(folder, data)
    name = f"labelled/{task}.jsonl"
    (folder / name).parent.mkdir(exist_ok=True)
    _write(folder / name, (_record(number, record) for number, record in enumerate(data)), "records")
    return name


def _path_from(folder: Path, path: str | PathLike[str]) -> str:
    if not Path(path).exists():
        raise errors.DataError(
            f"there is no file or folder {str(path)[:80]!r} in {Path.cwd()}",
            do="correct the path, or pass the texts themselves: `[text, …]`",
        )
    return os.path.relpath(path, folder)


def _write(path: Path, records: Iterable[Mapping[str, Any]], what: str) -> None:
    num_records = 0
    with files.replacing_file(path) as file, file.open("w", encoding="utf-8") as stream:
        for record in records:
            stream.write(json.dumps(record) + "\n")
            num_records += 1
        if not num_records:
            raise errors.DataError(f"there are no {what}: the sequence is empty", do="pass some")


def _text(number: int, text: object) -> str:
    if isinstance(text, str):
        return text
    raise errors.DataError(
        f"text {number} must be a string, not {type(text).__name__}: {repr(text)[:60]}",
        do='pass strings: `[record["text"] for record in records]`',
    )


def _record(number: int, record: object) -> Mapping[str, Any]:
    given = f"{type(record).__name__}: {repr(record)[:60]}"
    if isinstance(record, Mapping):
        try:
            json.dumps(record)
            return record
        except (TypeError, ValueError) as error:
            given = str(error)
    raise errors.DataError(
        f"record {number} must be a dictionary of strings, numbers and lists of them: {given}",
        do='pass records such as `{"text": "…", "label": "…"}`',
    )


def own_graph() -> Any:
    """Return the content of dvc.yaml."""
    return YAML(typ="safe").load(FILE)


def graph_elsewhere() -> dict[str, Any]:
    """Return the content of dvc.yaml for a project without our code and with a short params.yaml."""
    graph = own_graph()
    for stage in graph["stages"].values():
        body = stage.get("do", stage)
        data = [dep for dep in body["deps"] if not dep.startswith(_CODE)]
        body["deps"] = sorted({*data, PIN})
    # A project may not have imported a model yet; DVC lays its params.yaml over these values.
    return {"vars": [{"imports": {}}], **graph}
