"""The whole page, written to `reports/report.html` of a project and stored with the MLflow run of the same dvc.lock.

It is one file with inline style, and a policy that forbids the browser to fetch or run anything. It is not an output of
a stage, because it holds latencies, dates, the release and the machine, which differ from run to run.
"""

import os
import platform
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from markupsafe import Markup

from clozeline.params.reading import read_params
from clozeline.reporting import encoder, overview, packages, tasks, text
from clozeline.reporting.run import Fold, Part, ReportedRun, ReportSection, RunFiles, facts, html, joined
from clozeline.system import errors, files, machine
from clozeline.system.workspace import Workspace, tracking_uri

_PACKAGES = ("clozeline", "torch", "transformers", "tokenizers", "onnxruntime", "numpy", "dvc", "mlflow", "prefect")
REPORT = Path("reports/report.html")


def describe(cpu_facts: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return the processor, cores, memory, system, and versions of the packages that produce the figures."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    installed = {}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return {
        "processor": machine.processor(cpu_facts),
        "cores for this process": str(machine.available_cores()),
        "memory": f"{pages * page_bytes / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
    } | installed


SECTIONS = (
    ReportSection("encoder", "Encoder", encoder.evaluation_parts, is_open=True),
    ReportSection("tasks", "Tasks", tasks.parts, is_open=True),
    ReportSection("training", "Pre-training", encoder.curve_parts, is_open=True),
    ReportSection("examples", "Example predictions", text.example_parts),
    ReportSection("packages", "INT8 packages", packages.package_parts),
    ReportSection("gates", "Gates", packages.verdict_parts),
    ReportSection("text", "Text", text.corpus_parts),
    ReportSection("lineage", "Lineage", text.provenance_parts),
    ReportSection("machine", "Machine", lambda run: [lambda: facts(run.machine.items())]),
    ReportSection("figures", "All figures", packages.figure_parts),
)


@dataclass(frozen=True)
class Page:
    html: str
    faults: tuple[errors.ClozelineError, ...]  # missing or damaged inputs; the page names each in its place too


def build(run: ReportedRun, only: Collection[str] = ()) -> Page:
    """Build the report of `run`, with a notice in place of each part whose files cannot be read.

    `only`: ids of the chapters to show, unfolded and without the overview; empty: the whole report.
    """
    faults: list[errors.ClozelineError] = []
    on_top = joined() if only else joined(*(part() for part in overview.parts(run)))
    chapters = []
    for section in (section for section in SECTIONS if not only or section.id in only):
        shown: list[errors.ClozelineError] = []
        pieces = joined(*_pieces(section.parts(run), shown))
        chapters.append((section, pieces, section.is_open or bool(shown or only)))
        faults += shown
    title = f"{'Run' if only else 'Report of'} {run.files.root.resolve().name}"
    made = html("page", title=title, built_at=run.built_at, on_top=on_top, chapters=chapters)
    return Page(f"{made}\n", tuple(faults))


def _pieces(parts: Iterable[Part | Fold], shown: list[errors.ClozelineError]) -> Iterable[Markup | None]:
    """Yield the HTML of each part. A missing file gets one notice per section, and is added to `shown`."""
    for part in parts:
        if isinstance(part, Fold):
            num_shown = len(shown)
            body = joined(*_pieces(part.parts, shown))
            yield (html("folded", summary=part.summary, body=body, is_open=len(shown) > num_shown) if body else None)
            continue
        try:
            yield part()
        except errors.ClozelineError as error:
            if str(error) not in map(str, shown):
                shown.append(error)
                yield html("notice", error=error)


@dataclass(frozen=True)
class Written:
    """A written report."""

    path: Path
    faults: tuple[errors.ClozelineError, ...]  # inputs that it could not show
    run_id: str | None  # id of the MLflow run that it is stored with; None if it was not stored


def write(workspace: Workspace, built_at: datetime) -> Written:
    """Write the report of the project's current files, complete or partial.

    Raises:
        ParamsError: params.yaml cannot be read.
        StorageError: the disk is full.
    """
    from clozeline.tracking.past_runs import attach

    run = run_of(workspace, built_at)
    made = build(run)
    path = workspace.root / REPORT
    with files.replacing_file(path) as file:
        file.write_text(made.html, encoding="utf-8")
    try:
        run_id = run.past().run_id
    except errors.ClozelineError:
        run_id = None  # the lineage chapter reports the failure
    stored = run_id is not None and attach(tracking_uri(workspace), run_id, path)
    return Written(path, made.faults, run_id if stored else None)


def run_of(workspace: Workspace, built_at: datetime) -> ReportedRun:
    """Return the inputs of a report. MLflow is queried later, and once for each answer."""
    from clozeline.registry.decisions import released
    from clozeline.tracking.past_runs import past_runs

    params = read_params(workspace.root / "params.yaml")
    address = tracking_uri(workspace)
    return ReportedRun(
        files=RunFiles(workspace.root),
        tasks=tuple(params.finetune),
        packages=params.packages,
        released=cache(lambda package: released(address, workspace.root / "dist" / package)),
        past=cache(lambda: past_runs(address, workspace.root / "dvc.lock")),
        machine=describe(),
        built_at=built_at,
        is_causal=params.pretrain.objective == "clm",
    )
