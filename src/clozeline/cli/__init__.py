"""The `clozeline` command: one file for each group of verbs. Each verb imports its heavy dependencies itself."""

import logging
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from clozeline.cli import ask, evaluate, experiments, keep, plan, project, published, release, serve, stage
from clozeline.cli.verbs import Verb, Verbs, telling_of_extras
from clozeline.system import errors, machine

# Panel of `--help` → its verbs, in order. A verb is named as its function, without a final `_`: `import_`.
VERBS: Mapping[str, Sequence[Callable[..., None]]] = {
    "Make a model": (
        *(project.init, project.params, release.run, plan.plan),
        *(experiments.ablate, experiments.sweep, experiments.demo),
        *(published.import_, release.release, release.rollback, release.history),
    ),
    "Use a model": (
        *ask.VERBS,
        *(evaluate.search, evaluate.evaluate, experiments.glue, serve.serve, release.sign, release.lineage),
    ),
    "Look at it": (keep.report, keep.compare, keep.status, keep.gc, keep.forget, keep.ui),
    "Called by dvc.yaml": (stage.stage,),
}

app = typer.Typer(
    cls=Verbs, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
for _panel, _functions in VERBS.items():
    for _function in _functions:
        app.command(_function.__name__.rstrip("_"), cls=Verb, rich_help_panel=_panel)(_function)
app.add_typer(keep.remote, name="remote", rich_help_panel="Make a model")


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"clozeline {version('clozeline')}, Python {platform.python_version()}")
        raise typer.Exit


@app.callback()
def clozeline(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """From raw text to your own encoder, served as INT8 on ordinary CPUs."""


def main() -> None:
    """Run the command. A `ClozelineError` ends it with its message and its exit code, never with a traceback."""
    machine.collect_rarely()
    # Threads that spin while they wait take cores from working threads: on a busy machine they make torch 2.5 times
    # slower. OpenMP reads this variable when torch is loaded, so it is set before a verb imports torch.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # lets `module:build` be found in the current folder, as with `python -m`
    is_first = os.environ.get("RANK", "0") == "0"  # of several processes that train together
    logging.basicConfig(level=logging.INFO if is_first else logging.ERROR, format="%(message)s", stream=sys.stderr)
    try:
        with telling_of_extras():
            app()
    except errors.ClozelineError as error:
        if not error.is_reported:
            typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        if stage.is_inside():
            stage.end_at_once(error.exit_code)
        sys.exit(error.exit_code)
