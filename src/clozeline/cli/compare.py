"""`clozeline compare`: earlier runs side by side."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from clozeline.cli.project import project_here

if TYPE_CHECKING:
    from rich.table import Table

    from clozeline.reporting.side_by_side import Comparison
    from clozeline.tracking.compared_runs import ComparedRun


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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Show two to four earlier runs side by side: what differs in their params, and their figures with intervals.

    It ends with the addresses of MLflow's own comparison: of the runs, with every figure, and of their pre-training,
    with the curves of all on one chart.

    Examples:

    `clozeline compare`

    `clozeline compare fascinating-foxhound 7afceafe --json`
    """
    workspace = project_here()
    from rich.console import Console

    from clozeline.reporting.side_by_side import Comparison
    from clozeline.tracking.compared_runs import compared_runs
    from clozeline.workspace import tracking_uri

    address = tracking_uri(workspace)
    comparison = Comparison(compared_runs(address, runs or []))
    pages = dict(_pages(comparison.runs, address))
    if as_json:
        typer.echo(json.dumps({**comparison.record(), "mlflow": pages}, indent=2, ensure_ascii=False))
        return
    console = Console()
    for table in tables(comparison):
        if table.row_count:
            console.print(table)
    for note in comparison.notes:
        typer.echo(note, err=True)
    if not address.startswith("http"):
        typer.echo("`clozeline ui` shows these pages of MLflow:")
    for name, page in pages.items():
        typer.echo(f"{name} in MLflow: {page}")


def _pages(runs: "Sequence[ComparedRun]", address: str) -> Iterator[tuple[str, str]]:
    """Yield MLflow's comparison of the runs, and that of their pre-training if MLflow has at least two of these."""
    from clozeline.tracking.compared_runs import comparison_address

    experiments = [run.experiment_id for run in runs]
    yield "figures", comparison_address(address, [run.run_id for run in runs], experiments)
    trainings = list(dict.fromkeys(run.training_id for run in runs if run.training_id))
    if len(trainings) > 1:
        yield "curves", comparison_address(address, trainings, experiments)


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
