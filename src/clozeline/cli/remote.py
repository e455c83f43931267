"""`clozeline remote`: where other machines get the project's data and results from."""

from typing import Annotated

import typer

from clozeline.cli.project import project_here


def add_to(app: typer.Typer) -> None:
    remote = typer.Typer(no_args_is_help=True, help="Share data and results with other machines.")
    remote.command()(add)
    remote.command()(push)
    app.add_typer(remote, name="remote", rich_help_panel="Make a model")


def add(
    url: Annotated[str, typer.Argument(help="s3://BUCKET/FOLDER, or any other remote of DVC.")],
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="Address of an S3 server other than Amazon's.")
    ] = None,
) -> None:
    """Make URL the remote of this project, after a test write.

    It is entered in .dvc/config, which you commit; keys stay in the environment (AWS_ACCESS_KEY_ID, …). From then on
    every nightly run pushes to it, and runs on other machines restore from it what was made already.

    Example: `clozeline remote add s3://my-bucket/my-project`
    """
    workspace = project_here()
    from clozeline.versions import remote

    remote.add(workspace.root, url, endpoint)
    typer.echo(f"{url} is the remote now: commit .dvc/config, then `clozeline remote push`")


def push() -> None:
    """Send the data and results that the remote lacks; a push that was cut off is completed.

    Example: `clozeline remote push`
    """
    workspace = project_here()
    from clozeline.versions import remote

    typer.echo(f"pushed {remote.push(workspace.root)} objects")
