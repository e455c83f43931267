"""`clozeline release` and `rollback`: which version of a model is live."""

from typing import Annotated

import typer

from clozeline.cli.project import project_here

_PANEL = "Make a model"


def add_to(app: typer.Typer) -> None:
    for verb in (release, rollback):
        app.command(rich_help_panel=_PANEL)(verb)


def release() -> None:
    """Release the packages in `dist/`: check, register, and promote what passes the gates of params.yaml.

    Released twice, a package stays one version. The version that is live is the alias `champion`; one that does
    not pass is the `candidate`; the one that was live before is `previous`.

    Example: `clozeline release`
    """
    workspace = project_here()
    from clozeline.cli import summary
    from flows.release import release as release_all

    summary.show_releases(workspace, release_all(workspace.root))


def rollback(
    model: Annotated[
        str, typer.Argument(help="A registered model, as `clozeline-encoder`, or the name under dist/, as `encoder`.")
    ] = "encoder",
) -> None:
    """Put the version back that was live before; said twice, it changes nothing.

    No later release makes the version that was taken down live again: only a person does, with this command.

    Examples:

    `clozeline rollback`

    `clozeline rollback library`
    """
    workspace = project_here()
    from clozeline.registry import MODEL_PREFIX, model_name
    from clozeline.registry.versions import Registry
    from clozeline.workspace import tracking_uri

    name = model if model.startswith(MODEL_PREFIX) else model_name(model)
    done = Registry.open(tracking_uri(workspace)).roll_back(name)
    typer.echo(f"{done.name}: version {done.champion} is the champion, version {done.previous} the previous one")
