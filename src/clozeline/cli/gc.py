"""`clozeline gc`: delete data that is no longer needed."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from clozeline.cli.project import project_here

if TYPE_CHECKING:
    from clozeline.storage.sweep import Store

_NIGHTS = 7
_HOURS = 24
_MB = 1e6


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Look at it")(gc)


def gc(
    nights: Annotated[int, typer.Option(min=1, help="Keep the last N nights of each workspace.")] = _NIGHTS,
    hours: Annotated[
        int, typer.Option("--min-age-hours", min=1, help="Keep whatever was written in the last N hours.")
    ] = _HOURS,
    shared: Annotated[
        bool, typer.Option("--shared", help="Also sweep the remote, and a cache outside the project.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without this option nothing is removed.")] = False,
) -> None:
    """List data that is no longer needed, and with `--yes` delete it.

    Kept are the data of every version with an alias (champion, previous, candidate) and of the one in start.lock, of
    the last nights, of the working tree, and of all branches, tags and stashes of git in this clone. A night is a
    finished run that changed something; failed runs between two nights count with them. All registered packages stay,
    and so do the runs and their figures in MLflow: of older runs only the stored files are removed.

    It sweeps DVC's cache and run cache, the files of this workspace's runs in MLflow, and logs, checkpoints,
    experiments, search indexes and fetched models in work/. `--shared` sweeps what other workspaces use, too: all of
    them have to report to this MLflow, and `git fetch` their branches first. It may be killed at any moment: the next
    one goes on.

    Examples:

    `clozeline gc`

    `clozeline gc --nights 30 --shared`

    `clozeline gc --nights 30 --shared --yes`
    """
    workspace = project_here()
    from clozeline.orchestration.garbage import Kept, sweep_project

    stores = sweep_project(workspace, Kept(nights, timedelta(hours=hours)), shared=shared, is_dry=not yes)
    _show(stores, "removed" if yes else "removable")
    if yes:
        typer.echo(f"{_total(stores)} were removed; `clozeline status` shows the free disk space")
    elif any(store.removals for store in stores):
        options = f"--nights {nights} --min-age-hours {hours}{' --shared' if shared else ''}"
        typer.echo(f"nothing was removed yet: `clozeline gc {options} --yes` removes these {_total(stores)}")
    else:
        typer.echo(
            "nothing can be removed; smaller `--nights` and `--min-age-hours` keep less"
            + ("" if shared else ", `--shared` also sweeps the remote")
        )


def _total(stores: "tuple[Store, ...]") -> str:
    return f"{sum(store.num_bytes for store in stores) / _MB:,.1f} MB"


def _show(stores: "tuple[Store, ...]", removed: str) -> None:
    from rich.console import Console

    from clozeline.cli.tables import table_of

    table = table_of("", "store", ">kept", f">{removed}", ">MB")
    for store in stores:
        table.add_row(store.name, f"{store.num_kept:,}", f"{store.num_removable:,}", f"{store.num_bytes / _MB:,.1f}")
    Console().print(table)
