"""Calls of stages: the arguments that dvc.yaml writes, as the parameters of the function that is the stage."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from clozeline.errors import ParamsError
from clozeline.params import Params

_SECTIONS: Final[Mapping[str, str]] = MappingProxyType({"snapshot": "preprocess", "import": "imports"})
"""Section of params.yaml by stage, where the stage has none of its own name."""
_FROM_PYTHON: Final = {"before_first_step", "callbacks"}
"""Parameters that no command can give."""


def stage_named(name: str) -> Callable[..., None]:
    """Return the function `run` of a stage.

    Raises:
        ParamsError: there is no such stage.
    """
    known = sorted(file.stem for file in (Path(__file__).parents[1] / "stages").glob("[!_]*.py"))
    if name not in known:
        raise ParamsError(
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
        raise ParamsError(
            f"stage `{name}` takes {takes}, and got {' '.join(texts) or 'nothing'}",
            do=f"correct the `cmd` of stage `{name}` in dvc.yaml",
        )
    return arguments


def section_of(stage: str) -> str:
    """Return the section of params.yaml that a stage takes."""
    return _SECTIONS.get(stage, stage)


def _task_section(sections: dict[str, Any], task: str | None, name: str) -> Any:
    if task not in sections:
        raise ParamsError(
            f"params.yaml has {', '.join(sorted(sections)) or 'nothing'} for stage `{name}`, not task={task or '…'}",
            do=f"add a section `{name}.{task or '…'}` to params.yaml, or correct the name",
        )
    return sections[task]
