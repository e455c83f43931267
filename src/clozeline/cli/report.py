"""`clozeline report`: one page about the results of a run."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from clozeline.cli.project import project_here


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Look at it")(report)


def report(
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser on this machine.")] = False,
) -> None:
    """Write `reports/report.html`: curves, figures, examples, confusion, INT8, gates, and lineage on one page.

    The page needs no network and no server. `clozeline run` writes it too. The page names each part that is missing.

    Example: `clozeline report --open`
    """
    workspace = project_here()
    from clozeline.reporting.report import write

    written = write(workspace, datetime.now(UTC))
    stored = ", also stored with its MLflow run" if written.run_id else ""
    typer.echo(f"report: {written.path.relative_to(workspace.root)}{stored}")
    for fault in written.faults:
        typer.echo(f"missing: {fault.problem} ({fault.do})", err=True)
    if open_:
        typer.launch(str(written.path))
