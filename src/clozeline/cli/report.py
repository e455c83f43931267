"""`clozeline report`: one page of what a run made."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from clozeline.cli.project import project_here


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Look at it")(report)


def report(
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser of this machine.")] = False,
) -> None:
    """Make `reports/report.html`: curves, figures, examples, confusion, INT8, gates, and lineage on one page.

    It needs no network and no server to be read. `clozeline run` makes it too; what is missing is told in its place.

    Example: `clozeline report --open`
    """
    workspace = project_here()
    from clozeline.reporting.report import write

    written = write(workspace, datetime.now(UTC))
    stored = ", and with its MLflow run" if written.run_id else ""
    typer.echo(f"report: {written.path.relative_to(workspace.root)}{stored}")
    for fault in written.faults:
        typer.echo(f"missing: {fault.problem} ({fault.do})", err=True)
    if open_:
        typer.launch(str(written.path))
