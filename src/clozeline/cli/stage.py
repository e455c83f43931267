"""`clozeline stage`: the command that dvc.yaml calls."""

import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer

from clozeline.cli import torchrun
from clozeline.cli.knobs import in_params
from clozeline.cli.start import start_folder
from clozeline.errors import ClozelineError, ParamsError
from clozeline.params import Params, read_params

PARAMS = Path("params.yaml")
_SECTIONS: Final[Mapping[str, str]] = MappingProxyType({"snapshot": "preprocess"})
"""Section of params.yaml by stage, where the stage has none of its own name."""
_OWN_OUTPUTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"tokenize": ("tokenizer", "out"), "pretrain": ("out",)}
)
"""Paths that a stage writes, by stage that may begin with a model; for `dvc repro` without the flow."""


def add_to(app: typer.Typer) -> None:
    app.command(name="stage", rich_help_panel="Called by dvc.yaml")(stage)


def stage(
    name: Annotated[str, typer.Argument(help="A stage: a file of clozeline/stages.")],
    arguments: Annotated[list[str], typer.Argument(help="Its paths (and task or model), as name=value.")],
) -> None:
    """Run one stage with its section of params.yaml. Called by `dvc repro`, rarely by hand.

    With `CLOZELINE_TORCHRUN="--nproc-per-node 8"` in the environment, `pretrain` trains in 8 processes, one for each
    GPU of this machine; with more of torchrun's arguments, on several machines (docs/pretraining.md).

    Example: `clozeline stage tokenize clean=data/clean out=data/tokens …`
    """
    # Threads that spin while they wait take cores from working threads: on a busy machine they make torch 2.5 times
    # slower. OpenMP reads this variable when torch is loaded, so it is set before the stage is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    params = read_params(PARAMS)
    start = start_folder(params, fetches=any(text.startswith("start=") for text in arguments))
    if torchrun.is_wanted(name):
        torchrun.run_stage(name, arguments, os.environ[torchrun.VARIABLE])
        return
    from clozeline.contract.before_training import under_contract
    from clozeline.versions.own_outputs import refuse_own_outputs

    run = _stage_named(name)
    given = _arguments_for(run, name, params, start, arguments)
    refuse_own_outputs(params.starting_models, [given[out] for out in _OWN_OUTPUTS.get(name, ())], Path.cwd())
    try:
        with under_contract(name, given.get("task"), given.get("data"), params, Path.cwd()):
            run(**given)
    except ClozelineError as error:
        place = ".".join(filter(None, (_section_of(name), given.get("task"))))
        raise in_params(error, PARAMS, place, given["params"]) from error


def _stage_named(name: str) -> Callable[..., None]:
    known = sorted(file.stem for file in (Path(__file__).parents[1] / "stages").glob("[!_]*.py"))
    if name not in known:
        raise ParamsError(
            "there is no such stage",
            given=name,
            expected=f"one of: {', '.join(known)}",
            do="run `dvc stage list` to see what dvc.yaml calls",
        )
    run: Callable[..., None] = importlib.import_module(f"clozeline.stages.{name}").run
    return run


def _arguments_for(
    run: Callable[..., None], name: str, params: Params, start: Path | None, texts: list[str]
) -> dict[str, Any]:
    """Match `name=value` texts to the parameters of `run`: paths by name, params by section.

    `start`: folder of the encoder that start.lock names, which takes the place of that file.
    """
    given = dict(text.partition("=")[::2] for text in texts)
    section = getattr(params, _section_of(name))
    if isinstance(section, dict):
        section = _task_section(section, given.get("task"), name)
    known: dict[str, Any] = {"params": section, "seed": params.seed, "family": params.pretrain.model.family}
    wanted = inspect.signature(run).parameters
    paths = {
        key: Path(value) if wanted[key].annotation is Path else value for key, value in given.items() if key in wanted
    }
    of_start = {"start": start} if "start" in paths else {}
    arguments = {key: value for key, value in (known | paths | of_start).items() if key in wanted}
    if set(given) - set(wanted) or set(wanted) - set(arguments):
        raise ParamsError(
            f"stage `{name}` was called with the wrong arguments",
            given=" ".join(texts),
            expected=" ".join(f"{key}=…" for key in wanted if key not in known),
            do=f"correct the `cmd` of stage `{name}` in dvc.yaml",
        )
    return arguments


def _section_of(stage: str) -> str:
    return _SECTIONS.get(stage, stage)


def _task_section(sections: dict[str, Any], task: str | None, name: str) -> Any:
    if task not in sections:
        raise ParamsError(
            f"params.yaml has no section for this task of stage `{name}`",
            given=task or "no task=…",
            expected=f"one of: {', '.join(sorted(sections))}",
            do=f"add a section `{name}.{task or '…'}` to params.yaml, or correct the name",
        )
    return sections[task]
