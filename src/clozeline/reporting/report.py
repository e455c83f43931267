"""Writes `reports/report.html` of a project, and stores it with the MLflow run of the same dvc.lock.

It is not an output of a stage, because it holds latencies, dates and the release, which differ from run to run.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Final

from clozeline.errors import ClozelineError
from clozeline.params import read_params
from clozeline.reporting import machine, page
from clozeline.reporting.files import RunFiles
from clozeline.reporting.run import Run
from clozeline.storage.atomic import replacing_file
from clozeline.workspace import Workspace, tracking_uri

REPORT: Final = Path("reports/report.html")


@dataclass(frozen=True)
class Written:
    """A written report."""

    path: Path
    faults: tuple[ClozelineError, ...]
    """Inputs that it could not show."""
    run_id: str | None
    """Id of the MLflow run that it is stored with; None if it was not stored."""


def write(workspace: Workspace, built_at: datetime) -> Written:
    """Write the report of the project's current files, complete or partial.

    Raises:
        ParamsError: params.yaml cannot be read.
        StorageError: the disk is full.
    """
    from clozeline.tracking.past_runs import attach

    run = run_of(workspace, built_at)
    made = page.build(run)
    path = workspace.root / REPORT
    with replacing_file(path) as file:
        file.write_text(made.html, encoding="utf-8")
    try:
        run_id = run.past().run_id
    except ClozelineError:
        run_id = None  # the lineage chapter reports the failure
    stored = run_id is not None and attach(tracking_uri(workspace), run_id, path)
    return Written(path, made.faults, run_id if stored else None)


def run_of(workspace: Workspace, built_at: datetime) -> Run:
    """Return the inputs of a report. MLflow is queried later, and once for each answer."""
    from clozeline.registry.history import released
    from clozeline.tracking.past_runs import past_runs

    params = read_params(workspace.root / "params.yaml")
    address = tracking_uri(workspace)
    return Run(
        files=RunFiles(workspace.root),
        tasks=tuple(params.finetune),
        packages=params.packages,
        released=cache(lambda package: released(address, workspace.root / "dist" / package)),
        past=cache(lambda: past_runs(address, workspace.root / "dvc.lock")),
        machine=machine.describe(),
        built_at=built_at,
        is_causal=params.pretrain.objective == "clm",
    )
