"""`clozeline status` and `clozeline ui`: where the project stands, and the web pages of MLflow and Prefect.

`status` also says what to type next. The pages of `ui` are over this project's own databases.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from clozeline.cli.verbs import project_here

if TYPE_CHECKING:
    from clozeline.orchestration.status import ModelStatus, ProjectStatus, ScheduledRun


_GB = 1e9
PortOption = Annotated[int, typer.Option(min=1, max=65535)]


def status(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Show where the project stands: champions, the last scheduled runs, drift, disk, remote, and what to type next.

    It changes nothing. A server that does not answer is named, and the rest is shown.

    Examples:

    `clozeline status`

    `clozeline status --json`

    Args:
        as_json: Print one JSON record.
    """
    workspace = project_here()
    from clozeline.orchestration.status import project_status

    found = project_status(workspace)
    typer.echo(found.model_dump_json(indent=2) if as_json else "\n".join(_lines(found)))


def _lines(found: "ProjectStatus") -> Iterator[str]:
    for model in found.models or ():
        yield from _model(model)
    if found.models == []:
        yield "no model has been released: `clozeline run`, then `clozeline release`"
    for run in found.runs or ():
        yield from _run(run)
    if found.runs == []:
        yield "nothing is scheduled: `make deploy`"
    yield f"disk: {found.disk.free_bytes / _GB:.1f} of {found.disk.total_bytes / _GB:.1f} GB are free"
    if found.remote is not None:
        missing = found.remote.num_missing
        state = f"lacks {missing:,} objects: `clozeline remote push`" if missing else "has everything"
        yield f"remote: {found.remote.url} {state}"
    elif not any(problem.about == "remote" for problem in found.problems):
        yield "remote: none; `clozeline remote add URL` shares data and results with other machines"
    for problem in found.problems:
        yield f"{problem.about}: unknown, {problem.problem}" + (f" ({problem.given})" if problem.given else "")
        yield f"  do: {problem.do}"


def _model(model: "ModelStatus") -> Iterator[str]:
    since = f" since {_local(model.since)}, by {model.who}: {model.why or 'no reason given'}" if model.since else ""
    yield f"{model.name}: " + (f"version {model.champion} is the champion{since}" if model.champion else "no champion")
    yield from (f"  {line}" for line in model.of_fleet)
    if model.candidate:
        yield f"  candidate: version {model.candidate}, {model.outcome or 'not decided yet: `clozeline release`'}"
        if model.reason:
            yield f"  reason: {model.reason}"


def _run(run: "ScheduledRun") -> Iterator[str]:
    due = f"next at {_local(run.next)}" if run.next else "no next run is planned"
    times = " to ".join(_local(time) for time in (run.started, run.ended) if time)
    yield f"{run.deployment}: {', '.join(filter(None, [run.state, times])) or 'has not run yet'}; {due}"
    if run.do:
        yield from (f"  {line}" for line in run.message.splitlines())
        yield f"  do: {run.do}"


def _local(time: datetime) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M}"


def ui(mlflow_port: PortOption = 5000, prefect_port: PortOption = 4200) -> None:
    """Show runs, curves, and the registry (MLflow) and flow runs and schedules (Prefect), on this machine only.

    Ctrl-C ends both.

    Example: `clozeline ui --mlflow-port 5001`
    """
    workspace = project_here()
    from clozeline.orchestration.servers import serve_until_interrupted

    serve_until_interrupted(workspace, mlflow_port=mlflow_port, prefect_port=prefect_port, say=typer.echo)
