"""`clozeline compare`: earlier runs side by side."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from clozeline.cli.project import project_here

if TYPE_CHECKING:
    from rich.table import Table

    from clozeline.reporting.side_by_side import Comparison


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Look at it")(compare)


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Name of a run as `clozeline run` and MLflow show it, or the first characters of its id."
            " Without any: the last two runs with different results.",
            show_default=False,
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser on this machine.")] = False,
) -> None:
    """Show two to four earlier runs side by side: what differs in their params, their figures with intervals, curves.

    The table shows figures and params. `reports/comparison.html` has the curves too: loss and accuracy of every run on
    one chart, in training and on validation text.

    Examples:

    `clozeline compare`

    `clozeline compare fascinating-foxhound 7afceafe --open`
    """
    workspace = project_here()
    from rich.console import Console

    from clozeline.reporting.side_by_side import PAGE, write
    from clozeline.tracking.compared_runs import compared_runs
    from clozeline.workspace import tracking_uri

    comparison = write(compared_runs(tracking_uri(workspace), runs or []), workspace.root, datetime.now(UTC))
    console = Console()
    for table in tables(comparison):
        if table.row_count:
            console.print(table)
    for note in comparison.notes:
        typer.echo(note, err=True)
    opening = " ".join(["clozeline compare", *(runs or ()), "--open"])
    typer.echo(f"curves and every other figure that differs: {PAGE}; `{opening}` shows it")
    if open_:
        typer.launch(str(workspace.root / PAGE))


def tables(comparison: "Comparison") -> "Sequence[Table]":
    """Return the runs, their differing params, and their figures that have intervals."""
    from rich.markup import escape

    from clozeline.cli.tables import table_of

    about = table_of("Runs", "run", "id", "started (UTC)", "commit")
    for run in comparison.runs:
        facts = run.facts
        about.add_row(run.name, run.run_id[:8], f"{facts.started:%Y-%m-%d %H:%M}", (facts.commit or "-")[:7])
    names = [run.name for run in comparison.runs]
    params = table_of("What differs", "param, source or code", *names)
    for key, values in comparison.params.items():
        params.add_row(key, *map(escape, values))
    figures = table_of("Final figures, 95 % intervals", "figure", *(f">{name}" for name in names))
    for key, cells in comparison.final.items():
        figures.add_row(key, *(f"{cell.value}\n[dim]{cell.interval}[/]" for cell in cells))
    return about, params, figures
