"""`clozeline ui`: the web pages of MLflow and Prefect over this project's own databases."""

from typing import Annotated

import typer

from clozeline.cli.project import project_here

PortOption = Annotated[int, typer.Option(min=1, max=65535)]


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Look at it")(ui)


def ui(mlflow_port: PortOption = 5000, prefect_port: PortOption = 4200) -> None:
    """Show runs, curves, and the registry (MLflow) and flow runs and schedules (Prefect), on this machine only.

    Ctrl-C ends both.

    Example: `clozeline ui --mlflow-port 5001`
    """
    workspace = project_here()
    from clozeline.orchestration.local_servers import serve_until_interrupted

    serve_until_interrupted(workspace, mlflow_port=mlflow_port, prefect_port=prefect_port, say=typer.echo)
