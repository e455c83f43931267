"""The `clozeline` command: one file for each group of verbs. Each verb imports its heavy dependencies itself."""

import logging
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from clozeline.cli import (
    ablate,
    choosing,
    compare,
    demo,
    evaluate,
    forget,
    gc,
    glue,
    init,
    lineage,
    plan,
    predict,
    published,
    release,
    remote,
    report,
    run,
    search,
    serve,
    sign,
    stage,
    status,
    sweep,
    tag_and_answer,
    torchrun,
    ui,
)
from clozeline.cli.extras import telling_of_extras
from clozeline.cli.usage import Verbs
from clozeline.errors import ClozelineError
from clozeline.machine.garbage import collect_rarely

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for verbs in (
    init,
    run,
    plan,
    ablate,
    sweep,
    demo,
    published,
    release,
    remote,
    predict,
    choosing,
    tag_and_answer,
    search,
    evaluate,
    glue,
    serve,
    sign,
    lineage,
    report,
    compare,
    status,
    gc,
    forget,
    ui,
    stage,
):
    verbs.add_to(app)


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
    collect_rarely()
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # lets `module:build` be found in the current folder, as with `python -m`
    logging.basicConfig(level=_log_level(), format="%(message)s", stream=sys.stderr)
    try:
        with telling_of_extras():
            app()
    except ClozelineError as error:
        if not error.is_reported:
            typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        if torchrun.is_inside():
            torchrun.end_at_once(error.exit_code)
        sys.exit(error.exit_code)


def _log_level() -> int:
    """Return the log level: of several processes that train together, all but the first log only errors."""
    return logging.INFO if os.environ.get("RANK", "0") == "0" else logging.ERROR
