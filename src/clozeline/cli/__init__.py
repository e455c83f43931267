"""The `clozeline` command: one file for each group of verbs; heavy imports happen inside the verb that needs them."""

import logging
import os
import sys
from pathlib import Path

import typer

from clozeline.cli import (
    choosing,
    demo,
    evaluate,
    lineage,
    plan,
    predict,
    release,
    report,
    run,
    search,
    serve,
    stage,
    tag_and_answer,
    ui,
)
from clozeline.errors import ClozelineError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
run.add_to(app)
plan.add_to(app)
demo.add_to(app)
release.add_to(app)
predict.add_to(app)
choosing.add_to(app)
tag_and_answer.add_to(app)
search.add_to(app)
evaluate.add_to(app)
serve.add_to(app)
lineage.add_to(app)
report.add_to(app)
ui.add_to(app)
stage.add_to(app)


@app.callback()
def clozeline() -> None:
    """From raw text to your own encoder, served as INT8 on ordinary CPUs."""


def main() -> None:
    """Run the command; a `ClozelineError` ends it with its message and its exit code, never with a traceback."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # where an encoder of your own is looked for, as `python -m` does
    logging.basicConfig(level=_log_level(), format="%(message)s", stream=sys.stderr)
    try:
        app()
    except ClozelineError as error:
        typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        sys.exit(error.exit_code)


def _log_level() -> int:
    """Of several processes that train together the first one talks; the others are heard if something is wrong."""
    return logging.INFO if os.environ.get("RANK", "0") == "0" else logging.ERROR
