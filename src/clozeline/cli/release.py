"""`clozeline release` and `rollback`: which version of a model is live."""

from typing import Annotated

import typer

from clozeline.cli.endings import end_orderly_when_told
from clozeline.cli.project import project_here, sound_project_here
from clozeline.errors import ArtifactError

_PANEL = "Make a model"


def add_to(app: typer.Typer) -> None:
    for verb in (release, rollback):
        app.command(rich_help_panel=_PANEL)(verb)


def release(
    new_text: Annotated[
        bool, typer.Option("--new-text", help="Promote what was measured on other text than the champion, uncompared.")
    ] = False,
) -> None:
    """Release the packages in `dist/`: check, register, and promote what passes the gates of params.yaml.

    Released twice, a package stays one version. The version that is live is the alias `champion`; one that does
    not pass is the `candidate`; the one that was live before is `previous`. One that was measured on other text than
    the champion does not compare with it: it is held until you say `--new-text`.

    Examples:

    `clozeline release`

    `clozeline release --new-text`   after a change of the text
    """
    workspace = sound_project_here()
    end_orderly_when_told()
    from clozeline.cli import summary
    from clozeline.flows.release import release as release_all
    from clozeline.orchestration.temporary_server import ensure_prefect_server

    ensure_prefect_server(workspace)
    summary.show_releases(workspace, release_all(workspace.root, new_text))


def rollback(
    model: Annotated[
        str, typer.Argument(help="A registered model, as `clozeline-encoder`, or the name under dist/, as `encoder`.")
    ] = "encoder",
    undo: Annotated[bool, typer.Option("--undo", help="Put the version up again that was taken down.")] = False,
) -> None:
    """Put the version back that was live before; said twice, the second time is refused.

    No later release makes the version that was taken down live again: only a person does, with `--undo`.

    Examples:

    `clozeline rollback`

    `clozeline rollback library`

    `clozeline rollback library --undo`
    """
    workspace = project_here()
    from clozeline.registry import CHAMPION, MODEL_PREFIX, model_name
    from clozeline.registry.versions import Registry
    from clozeline.workspace import tracking_uri

    name = model if model.startswith(MODEL_PREFIX) else model_name(model)
    registry = Registry.open(tracking_uri(workspace))
    known = registry.names_with(CHAMPION)
    if known and name not in known:
        raise ArtifactError(
            "there is no such registered model",
            given=model,
            expected=f"one of: {', '.join(sorted(known))}",
            do="correct the name, or release that model first (`clozeline release`)",
        )
    done = registry.roll_back(name, undo=undo)
    typer.echo(f"{done.name}: version {done.champion} is the champion, version {done.previous} the previous one")
