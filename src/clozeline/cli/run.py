"""`clozeline run`: from raw text to released models, and tables of the results."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from clozeline.cli.verbs import ending_orderly, project_here, project_to_run
from clozeline.params.editing import assignments, changes_in, edit
from clozeline.system.errors import ClozelineError, TransientError
from clozeline.system.workspace import Workspace
from clozeline.tracking.run_logger import require_tensorboard


def run(
    release: bool = True,
    refresh: Annotated[bool, typer.Option("--refresh")] = False,
    config: Annotated[list[Path] | None, typer.Option(metavar="FILE")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
) -> None:
    """Bring every stage up to date, release the models, and show the results, as tables and in reports/report.html.

    Only stages that depend on a change run; earlier results come from DVC's cache. `make run` calls this.

    Examples:

    `clozeline run`                everything

    `clozeline run --no-release`   leave the registry as it is

    `clozeline run --set pretrain.steps=500 --set seed=7`   change two values of params.yaml first

    `clozeline run --config configs/clm.yaml`   change all values that this file names

    `CLOZELINE_TENSORBOARD=work/tensorboard clozeline run`   write the curves for TensorBoard, too

    Args:
        release: Release the models that pass the gates of params.yaml.
        refresh: Read a source again that DVC cannot watch: a URL, a database, the hub.
        config: Change params.yaml to the values in FILE, as in configs/.
        settings: Change one value of params.yaml.
    """
    workspace = project_here()
    require_tensorboard()
    _change_params(workspace, config or (), settings or ())
    project_to_run()
    started = time.monotonic()
    with ending_orderly():
        from clozeline.cli import summary
        from clozeline.flows.pipeline import pipeline
        from clozeline.flows.release import release as release_all
        from clozeline.orchestration.release import Release, ReleaseRefusedError
        from clozeline.orchestration.servers import ensure_prefect_server
        from clozeline.reporting import page

        ensure_prefect_server(workspace)
        stages = pipeline(workspace.root, refresh=refresh)
        releases: Sequence[Release] = ()
        failure: ClozelineError | None = None
        if release:
            try:
                releases = release_all(workspace.root, trial=True)
            except ReleaseRefusedError as error:
                failure, releases = error, error.releases
            except TransientError as error:
                failure = error
        summary.show(workspace, stages, releases, seconds=time.monotonic() - started)
        page.write(workspace, datetime.now(UTC))
        if failure:
            failure.is_reported = False  # show the error again below the tables
            raise failure


def _change_params(workspace: Workspace, files: Sequence[Path], settings: Sequence[str]) -> None:
    """Change params.yaml before anything runs, and say how."""
    changes = [change for file in files for change in changes_in(file)] + assignments(settings)
    source = ", ".join([*map(str, files), *(["--set"] if settings else [])])
    lines = edit(workspace.root / "params.yaml", changes, source) if changes else []
    for line in lines:
        typer.echo(f"params.yaml: {line}", err=True)
    if lines and workspace.is_in_git:
        typer.echo("`git diff params.yaml` shows the changes, `git checkout params.yaml` takes them back", err=True)
