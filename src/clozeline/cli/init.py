"""`clozeline init`, `clozeline params`: a project of one's own, and all of its params."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from clozeline.params.reading import params_in, read_tree
from clozeline.starter.project import Template

_PARAMS = Path("params.yaml")


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Make a model")(init)
    app.command(rich_help_panel="Make a model")(params)


def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the project, made if it is missing.")],
    template: Annotated[
        Template,
        typer.Option(
            help="mlm: fills blanks; clm: continues text; adapt: trains a published encoder further; published: takes "
            "it as it is; lines: a sentence in each line of one file."
        ),
    ] = "mlm",
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Pin the running Clozeline in a project that is there already.")
    ] = False,
) -> None:
    """Create a project: params, stages, flows, infra, Makefile, a test, and the pinned Clozeline.

    Examples:

    `clozeline init my-encoder`                     a masked encoder of the files in my-encoder/my-texts

    `clozeline init my-encoder --template lines`    of my-encoder/sentences.txt

    `clozeline init . --upgrade`                    after `pip install` of another wheel of Clozeline
    """
    from clozeline.starter import project

    if upgrade:
        project.upgrade(folder)
        typer.echo(f"{folder / 'requirements.lock'} pins the running Clozeline. Next: `clozeline run`")
        return
    project.create(folder, template)
    source = read_tree(folder / _PARAMS)["preprocess"]["source"]["path"]
    into = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    typer.echo(f"{folder} is a project. Put your text at {folder / source}, then: `{into}clozeline run`")
    if template == "published":
        typer.echo(f"Or take a model as it is, without text: `{into}clozeline import NAME-OR-FOLDER`")


def params(
    out: Annotated[Path | None, typer.Option(help="File to write; the default is standard output.")] = None,
) -> None:
    """Print every knob of the project: params.yaml, completed with the defaults.

    A file gets the values as the stages take them: the recipe is laid over `pretrain`, and each task is complete.

    Example: `clozeline params`
    """
    from clozeline.params.writing import write_complete, write_yaml

    tree = read_tree(_PARAMS)
    found = params_in(tree, _PARAMS)
    if out is None:
        write_yaml(tree, sys.stdout)
    else:
        write_complete(found, out)
