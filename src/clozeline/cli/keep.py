"""`clozeline report`, `compare`, `status`, `ui`, `gc`, `forget`, `remote`: show, delete or share what runs made."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from clozeline.cli.tables import JsonOption, show, table_of
from clozeline.cli.verbs import Verb, project_here
from clozeline.params.reading import read_params
from clozeline.system.errors import DataError
from clozeline.system.files import SweptStore
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.versions import remote as dvc_remote

if TYPE_CHECKING:
    from clozeline.orchestration.forgetting import Findings
    from clozeline.orchestration.status import ModelStatus, ProjectStatus, ScheduledRun
    from clozeline.reporting.run import RunComparison
    from clozeline.tracking.past_runs import PastRun


_MB, _GB = 1e6, 1e9
_DOC_ID = re.compile("[0-9a-f]{32}")
_CLEAN = Path("data/clean")
_NOT_CLEANED = (
    "weights and vocabularies of the versions above: they were learnt from it",
    "git's history, backups, and Prefect's database, which keeps log lines",
    "sources, unless they are changed; caches and work/ of other machines: run the same command there",
)
PortOption = Annotated[int, typer.Option(min=1, max=65535)]


def forget(document: str, yes: Annotated[bool, typer.Option("--yes")] = False) -> None:
    """Say where a document is, and with `--yes` remove it and keep it out.

    It is found by its words, as a text of its own or inside a longer one, in snapshots, splits, DVC's cache, run cache
    and remote, outputs, reports, logs, search indexes, MLflow's files of runs, and the lineage of registered versions.
    A tombstone in forgotten.lock, a keyed hash, keeps it out of later snapshots. Versions that come from it are marked;
    `clozeline lineage --verify` then says `forgotten` of what was removed.

    It may be killed at any moment: the same command goes on. Commit forgotten.lock and dvc.lock afterwards, keep
    forgotten.key out of git, and run `clozeline run`.

    Examples:

    `clozeline forget letter.txt`

    `clozeline forget letter.txt --yes`

    Args:
        document: File with the text, - for standard input, or a doc_id.
        yes: Remove it; without this option nothing is removed.
    """
    workspace = project_here()
    from clozeline.orchestration.forgetting import forget as forget_text

    params = read_params(workspace.root / "params.yaml")
    text = _text_of(document, workspace)
    found = forget_text(workspace, text, params.preprocess.max_characters, is_dry=not yes)
    _show_findings(found, "removed" if yes else "removable")
    if yes:
        typer.echo("forgotten: commit forgotten.lock and dvc.lock, then `clozeline run` makes everything without it")
    elif found.is_anywhere or found.is_known:
        typer.echo(f"nothing was removed yet: `clozeline forget {document} --yes` does it")
    else:
        typer.echo(f"it is in none of these stores; `clozeline forget {document} --yes` keeps it out of new snapshots")


def _text_of(document: str, workspace: Workspace) -> str:
    if document == "-":
        return sys.stdin.read()
    path = Path(document)
    if not path.is_file() and _DOC_ID.fullmatch(document):
        return _text_with_id(document, workspace.root / _CLEAN)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{document} cannot be read: {' '.join(str(error).split())}",
            do="name a file with the text of the document in UTF-8, - for standard input, or a doc_id of data/clean",
        ) from error


def _text_with_id(doc_id: str, clean: Path) -> str:
    from clozeline.records.clean_text import DOC_ID, SPLITS, TEXT, columns_of, file_of

    for split in SPLITS:
        for ids, texts in columns_of(file_of(clean, split), DOC_ID, TEXT):
            if doc_id in (known := ids.to_pylist()):
                return str(texts[known.index(doc_id)].as_py())
    raise DataError(f"no text of {clean} has the doc_id {doc_id}", do="give the text itself: `clozeline forget FILE`")


def _show_findings(found: "Findings", removed: str) -> None:
    typer.echo(f"{found.num_words:,} words; in the present data: {', '.join(found.holding) or 'nowhere'}")
    _show_stores(found.stores, "not concerned", removed)
    for one in found.versions:
        aliases = f" ({', '.join(one.aliases)})" if one.aliases else ""
        trained = "trained on it" if one.was_trained_on else "not found in its splits"
        typer.echo(f"{one.version}{aliases}: {trained}; it is in {', '.join(one.holding) or 'nothing that is stored'};")
        typer.echo(f"  {removed} behind it: {', '.join(one.removed)}")
    typer.echo("not changed, and not claimed to be clean:")
    for line in (*found.left, *_NOT_CLEANED):
        typer.echo(f"  {line}")


def gc(
    nights: Annotated[int, typer.Option(min=1)] = 7,
    hours: Annotated[int, typer.Option("--min-age-hours", min=1)] = 24,
    shared: Annotated[bool, typer.Option("--shared")] = False,
    yes: Annotated[bool, typer.Option("--yes")] = False,
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

    Args:
        nights: Keep the last N nights of each workspace.
        hours: Keep whatever was written in the last N hours.
        shared: Also sweep the remote, and a cache outside the project.
        yes: Remove it; without this option nothing is removed.
    """
    workspace = project_here()
    from clozeline.orchestration.garbage import sweep_project

    stores = sweep_project(workspace, nights, timedelta(hours=hours), shared=shared, is_dry=not yes)
    _show_stores(stores, "kept", "removed" if yes else "removable")
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


def _total(stores: Sequence[SweptStore]) -> str:
    return f"{sum(store.num_bytes for store in stores) / _MB:,.1f} MB"


def _show_stores(stores: Sequence[SweptStore], kept: str, removed: str) -> None:
    rows = ((one.name, f"{one.num_kept:,}", f"{one.num_removable:,}", f"{one.num_bytes / _MB:,.1f}") for one in stores)
    show([table_of("", "store", f">{kept}", f">{removed}", ">MB", rows=rows)])


def add(url: str, endpoint: Annotated[str | None, typer.Option("--endpoint", metavar="URL")] = None) -> None:
    """Make URL the remote of this project, after a test write.

    It is entered in .dvc/config, which you commit; keys stay in the environment (AWS_ACCESS_KEY_ID, …). From then on
    every nightly run pushes to it, and runs on other machines restore from it what was made already.

    Example: `clozeline remote add s3://my-bucket/my-project`

    Args:
        url: s3://BUCKET/FOLDER, or any other remote of DVC.
        endpoint: Address of an S3 server other than Amazon's.
    """
    dvc_remote.add(project_here().root, url, endpoint)
    typer.echo(f"{url} is the remote now: commit .dvc/config, then `clozeline remote push`")


def push() -> None:
    """Send the data and results that the remote lacks; a push that was cut off is completed.

    Example: `clozeline remote push`
    """
    typer.echo(f"pushed {dvc_remote.push(project_here().root)} objects")


def compare(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Show two to four earlier runs side by side: what differs in their params, and their figures with intervals.

    It ends with the addresses of MLflow's own comparison: of the runs, with every figure, and of their pre-training,
    with the curves of all on one chart.

    Examples:

    `clozeline compare`

    `clozeline compare fascinating-foxhound 7afceafe --json`

    Args:
        runs: Name of a run as `clozeline run` and MLflow show it, or the first characters of its id. Without any:
            the last two runs with different results.
    """
    address = tracking_uri(project_here())
    from clozeline.reporting.run import RunComparison
    from clozeline.tracking.past_runs import compared_runs

    comparison = RunComparison(compared_runs(address, runs or []))
    pages = dict(_pages(comparison.runs, address))
    if as_json:
        typer.echo(json.dumps({**comparison.record(), "mlflow": pages}, indent=2, ensure_ascii=False))
        return
    show(tables(comparison))
    for note in comparison.notes:
        typer.echo(note, err=True)
    if not address.startswith("http"):
        typer.echo("`clozeline ui` shows these pages of MLflow:")
    for name, page in pages.items():
        typer.echo(f"{name} in MLflow: {page}")


def _pages(runs: "Sequence[PastRun]", address: str) -> Iterator[tuple[str, str]]:
    """Yield MLflow's comparison of the runs, and that of their pre-training if MLflow has at least two of these."""
    from clozeline.tracking.past_runs import comparison_address

    experiments = [run.experiment_id for run in runs]
    yield "figures", comparison_address(address, [run.run_id for run in runs], experiments)
    trainings = list(dict.fromkeys(run.training_id for run in runs if run.training_id))
    if len(trainings) > 1:
        yield "curves", comparison_address(address, trainings, experiments)


def tables(comparison: "RunComparison") -> Sequence[Table]:
    """Return the runs, their differing params, and their figures that have intervals."""
    about = [
        (run.name, run.run_id[:8], f"{run.started:%Y-%m-%d %H:%M}", (run.commit or "-")[:7]) for run in comparison.runs
    ]
    params = [(key, *map(escape, values)) for key, values in comparison.params.items()]
    final = comparison.final.items()
    figures = [(key, *(f"{cell.value}\n[dim]{cell.interval}[/]" for cell in cells)) for key, cells in final]
    names = [run.name for run in comparison.runs]
    return (
        table_of("Runs", "run", "id", "started (UTC)", "commit", rows=about),
        table_of("What differs", "param, source or code", *names, rows=params),
        table_of("Final figures, 95 % intervals", "figure", *(f">{name}" for name in names), rows=figures),
    )


def report(open_: Annotated[bool, typer.Option("--open")] = False) -> None:
    """Write `reports/report.html`: curves, figures, examples, confusion, INT8, gates, and lineage on one page.

    The page needs no network and no server. `clozeline run` writes it too. The page names each part that is missing.

    Example: `clozeline report --open`

    Args:
        open_: Open the page in a browser on this machine.
    """
    workspace = project_here()
    from clozeline.reporting.page import write

    written = write(workspace, datetime.now(UTC))
    stored = ", also stored with its MLflow run" if written.run_id else ""
    typer.echo(f"report: {written.path.relative_to(workspace.root)}{stored}")
    for fault in written.faults:
        typer.echo(f"missing: {fault.problem} ({fault.do})", err=True)
    if open_:
        typer.launch(str(written.path))


remote = typer.Typer(no_args_is_help=True, help="Share data and results with other machines.")
remote.command(cls=Verb)(add)
remote.command(cls=Verb)(push)


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

    Args:
        mlflow_port: Port of MLflow's pages.
        prefect_port: Port of Prefect's pages.
    """
    workspace = project_here()
    from clozeline.orchestration.servers import serve_until_interrupted

    serve_until_interrupted(workspace, mlflow_port=mlflow_port, prefect_port=prefect_port, say=typer.echo)
