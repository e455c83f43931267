"""The whole page, written to `reports/report.html` of a project and stored with the MLflow run of the same dvc.lock.

It is one file with inline style, and a policy that forbids the browser to fetch or run anything. It is not an output of
a stage, because it holds latencies, dates, the release and the machine, which differ from run to run.

At its top are the headline figure, each model in one line, and the changes since the last run. The headline figure of a
model is compared with a baseline and with the last run.
"""

import os
import platform
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from importlib import metadata
from pathlib import Path

from markupsafe import Markup

from clozeline.params.reading import read_params
from clozeline.records.finetune.task_metrics import Headline
from clozeline.records.package import ExportMetrics
from clozeline.registry.decisions import Released
from clozeline.reporting import encoder, formats, packages, tasks, text
from clozeline.reporting.run import (
    Fold,
    Part,
    ReportedRun,
    ReportSection,
    RunFiles,
    code,
    differences,
    facts,
    folded,
    html,
    joined,
    message,
    table,
)
from clozeline.system import errors, files, machine
from clozeline.system.errors import ClozelineError
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.tracking.past_runs import PastRun

_RANGE = "\N{NO-BREAK SPACE}–\N{NO-BREAK SPACE}"
_NAMED_FIRST = "of the {} tokens are predicted correctly on the first guess"
_NOTHING_EARLIER = "MLflow has no earlier run with other results, so there is nothing to compare with yet."
_PACKAGES = ("clozeline", "torch", "transformers", "tokenizers", "onnxruntime", "numpy", "dvc", "mlflow", "prefect")
REPORT = Path("reports/report.html")


@dataclass(frozen=True)
class JudgedModel:
    """A model with its headline figure.

    `model` is its folder under `models/`, `tracked_as` the name of the figure in an MLflow flow run.
    """

    model: str
    name: str
    tracked_as: str
    top: Headline
    faults: tuple[str, ...] = ()

    @property
    def form(self) -> formats.Format:
        return tasks.form(self.top)

    @property
    def interval(self) -> str:
        """Return the 95 % interval in words."""
        return f"{self.form(self.top.low)}{_RANGE}{self.form(self.top.high)}"

    def change_from(self, before: float) -> tuple[str, str]:
        """Return the difference in words and its kind: `good`, `bad`, or `note` if it is within the interval."""
        change = self.top.value - before
        is_chance = self.top.low <= before <= self.top.high
        kind = "note" if is_chance or change == 0 else "good" if change > 0 else "bad"
        return f"{formats.difference(change, self.form)}{', within the interval' if is_chance and change else ''}", kind


def judged(run: ReportedRun) -> list[JudgedModel]:
    """Return the encoder and the tasks that have figures. The chapters name the missing files of the others."""
    made: list[JudgedModel] = []
    with suppress(ClozelineError):
        made.append(JudgedModel("encoder", "encoder", "evaluate.top1", encoder.headline(run)))
    for task in run.tasks:
        with suppress(ClozelineError):
            tracked_as, top = f"finetune/{task}.headline.value", tasks.headline(run, task)
            made.append(JudgedModel(f"finetuned/{task}", task, tracked_as, top, tasks.faults(run, task)))
    return made


def parts(run: ReportedRun) -> Iterable[Part]:
    return [partial(piece, run) for piece in (_headline, _models, _changes)]


def _headline(run: ReportedRun) -> Markup | None:
    models = judged(run)
    if not models:
        return None
    first, earlier = models[0], _earlier(run)
    packages_of_it = [name for name, model in run.packages.items() if model == first.model]
    releases = [(name, _released(run, name)) for name in packages_of_it]
    return html(
        "headline",
        given=first,
        words=_NAMED_FIRST.format("next" if run.is_causal else "hidden")
        if first.top.metric == "top1"
        else f"{formats.in_words(first.top.metric)} of {first.name}",
        then=_then(first, earlier),
        earlier=earlier,
        releases=[(name, packages.badge(it), packages.state(it)) if it else (name, None, "") for name, it in releases],
    )


def _models(run: ReportedRun) -> Markup | None:
    models, earlier = judged(run), _earlier(run)
    last = ("last run",) if earlier else ()
    columns = ("model", "figure", "this run", *last, "baseline", "INT8", "one text", "release")
    rows = [
        (
            code(one.name),
            _cell(formats.in_words(one.top.metric), *one.faults),
            _cell(one.form(one.top.value), one.interval),
            *([_then(one, earlier) or "–"] if earlier else []),
            _cell(one.form(one.top.baseline_value), one.top.baseline),
            *_package(run, next((name for name, model in run.packages.items() if model == one.model), None)),
        )
        for one in models
    ]
    return table("Models", columns, rows, kind="models") if models else None


def _package(run: ReportedRun, package: str | None) -> tuple[object, ...]:
    """Return the cells for INT8, the latency of one text, and the release."""
    if package is None:
        return ("–", "–", "not exported")
    released = _released(run, package)
    latency = released.latency if released else {}
    size, times = "–", "–"
    with suppress(ClozelineError):
        size = _int8_size(packages.metrics(run, package))
    if "int8_text_milliseconds" in latency:
        beside = f"fp32 {formats.milliseconds(latency['fp32_text_milliseconds'])}; on one thread"
        times = _cell(formats.milliseconds(latency["int8_text_milliseconds"]), beside)
    if released is None:
        return (size, times, "not released")
    served = f"serves {released.version.served}" if released.version.served else ""
    return (size, times, _cell(packages.badge(released), served))


def _int8_size(figures: ExportMetrics) -> str:
    if figures.int8_size_bytes is None or figures.int8_agreement is None:
        return "–"
    beside = f"fp32 {formats.megabytes(figures.fp32_size_bytes)}; {formats.share(figures.int8_agreement)} agreement"
    return _cell(formats.megabytes(figures.int8_size_bytes), beside)


def _then(one: JudgedModel, earlier: PastRun | None) -> Markup | None:
    """Return the figure of the earlier run and the change since then."""
    before = earlier.figures.get(one.tracked_as) if earlier else None
    if before is None:
        return None
    change, kind = one.change_from(before)
    return html("then", value=one.form(before), change=change, kind=kind)


def _changes(run: ReportedRun) -> Markup:
    """Return the inputs of the stages that differ from those of the earlier run."""
    earlier = _earlier(run)
    if earlier is None:
        return message(_NOTHING_EARLIER, "note", tag="p")
    since = f"Since the run of {earlier.started:%Y-%m-%d %H:%M} UTC"
    if earlier.lock is None:
        return message(f"{since}: its dvc.lock is missing, so the changes are unknown.", "note", tag="p")
    changes = differences([earlier.lock, run.files.lock()])
    columns = ("changed", "then", "now")
    rows = [(code(name), *values) for name, values in changes.items()]
    at = f" at commit {earlier.commit[:10]}" if earlier.commit else ""
    made = table(f"{since}{at}", columns, rows)
    named = ", ".join(list(changes)[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")
    return folded(f"{since}, this changed: {named or 'nothing that a stage reads'}", made)


def _cell(value: str, *beside: str) -> Markup:
    return html("cell", value=value, beside=beside)


def _earlier(run: ReportedRun) -> PastRun | None:
    with suppress(ClozelineError):  # the lineage chapter reports the failure
        return run.past().earlier
    return None


def _released(run: ReportedRun, package: str) -> Released | None:
    with suppress(ClozelineError):  # the gates chapter reports the failure
        return run.released(package)
    return None


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
    on_top = joined() if only else joined(*(part() for part in parts(run)))
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
