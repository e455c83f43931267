"""`clozeline release`, `rollback` and `history`: which version of a model is the champion."""

from typing import TYPE_CHECKING, Annotated

import typer

from clozeline.cli.endings import ending_orderly
from clozeline.cli.project import project_here, sound_project_here
from clozeline.errors import ArtifactError, ParamsError
from clozeline.params import read_params

if TYPE_CHECKING:
    from clozeline.registry.versions import Registry

_PANEL = "Make a model"


def add_to(app: typer.Typer) -> None:
    for verb in (release, rollback, history):
        app.command(rich_help_panel=_PANEL)(verb)


def release(
    accept_held: Annotated[
        bool, typer.Option("--accept", help="Promote held versions too, except those that were rolled back.")
    ] = False,
) -> None:
    """Release the packages in `dist/`: check, register, and promote what passes the gates of params.yaml.

    A version that passes becomes the `champion`, and the old champion becomes the `previous` version. A version that
    fails stays the `candidate`. Candidate and champion are measured on the same items, and `release.promote` says what
    the interval of the difference has to show. A version is held until you give `--accept` if that cannot be decided,
    or if it is a task's first version and does not beat the simple method (without `release.beat_baseline`, the
    trivial answer). Releasing a package again creates no second version.

    Examples:

    `clozeline release`

    `clozeline release --accept`   after a look at the evidence
    """
    workspace = sound_project_here()
    with ending_orderly():
        from clozeline.cli import summary
        from clozeline.flows.release import release as release_all
        from clozeline.orchestration.releasing import require_registry
        from clozeline.orchestration.temporary_server import ensure_prefect_server

        require_registry(workspace, read_params(workspace.root / "params.yaml"))  # before a server is started
        ensure_prefect_server(workspace)
        summary.show_releases(workspace, release_all(workspace.root, accept_held))


def rollback(
    model: Annotated[
        str, typer.Argument(help="Name of a registered model (`clozeline-encoder`), or its name in dist/ (`encoder`).")
    ] = "encoder",
    to: Annotated[
        str | None, typer.Option("--to", metavar="VERSION", help="Go back to this version, however old.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Make the rolled-back version the champion again.")] = False,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Reason, kept in the record of the change.")] = "",
) -> None:
    """Make the previous version the champion again; a second rollback in a row is refused.

    No later release promotes a version that was rolled back. Only `--undo` or `--to` does.

    Examples:

    `clozeline rollback`

    `clozeline rollback library`

    `clozeline rollback library --undo`

    `clozeline rollback library --to 3 --why "wrong labels in version 4"`
    """
    if to and undo:
        raise ParamsError(
            "a rollback goes to one version",
            given=f"--to {to} and --undo",
            expected="--to VERSION or --undo, not both",
            do=f"`clozeline rollback {model} --to {to}`, or `clozeline rollback {model} --undo`",
        )
    name, registry = _registered_model(model)
    done = registry.roll_back(name, to=to, undo=undo, why=why)
    typer.echo(f"{done.name}: version {done.champion} is the champion, version {done.previous} the previous one")


def history(
    model: Annotated[str, typer.Argument(help="Name of a registered model, or its name in dist/.")] = "encoder",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON record for each change.")] = False,
) -> None:
    """Show each change of the champion: who made it, when, why, and on which evidence.

    Examples:

    `clozeline history`

    `clozeline history library --json`
    """
    name, registry = _registered_model(model)
    changes = registry.changes(name)
    if not changes:
        raise ArtifactError(
            f"{name} has never had a champion",
            given="no change in the registry",
            expected="a model that was released",
            do="`clozeline release` it first",
        )
    for change in changes:
        typer.echo(change.model_dump_json() if as_json else f"{change}{change.evidence and f' ({change.evidence})'}")


def _registered_model(model: str) -> "tuple[str, Registry]":
    """Return the full name of `model`, and the registry of the project in this folder.

    Raises:
        ArtifactError: the registry has other models, but not this one.
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
    return name, registry
