"""Last output of `clozeline run`: stages, figures beside their baselines, packages, versions, and what to type next."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from clozeline.cli import ask, tables
from clozeline.cli.tables import table_of
from clozeline.orchestration.pipeline import StageResult
from clozeline.orchestration.release import Release
from clozeline.params import project, reading
from clozeline.records.evaluation import EncoderMetrics
from clozeline.records.finetune.task_metrics import TaskMetrics
from clozeline.records.package_metrics import MetricPaths, PackageMetrics
from clozeline.registry.models import CANDIDATE, CHAMPION, PREVIOUS
from clozeline.registry.versions import Registry
from clozeline.reporting.formats import is_share
from clozeline.system.workspace import Workspace, tracking_uri

_NEXT_VERBS = {
    "report --open": "open reports/report.html, all results on one page",
    "serve": "serve the champions over HTTP; before there is one, all of dist/",
    "ui": "see the runs and the registry in MLflow, the flow runs in Prefect",
}
# Name of a figure, its field, and how it is written.
_OF_ENCODER = (
    ("perplexity", "perplexity", "{:,.1f}".format),
    ("top-1", "top1", "{:.1%}".format),
    ("top-5", "top5", "{:.1%}".format),
)


def show(workspace: Workspace, stages: Sequence[StageResult], releases: Sequence[Release], *, seconds: float) -> None:
    """Print the whole summary to standard output."""
    params = reading.read_params(workspace.root / "params.yaml")
    figures = read_figures(workspace, params)
    tables.show([stage_table(stages, seconds), encoder_table(figures), task_table(figures)])
    _show_packages(workspace, figures, releases)
    verbs = {_question(params): "ask a model", **_NEXT_VERBS}
    command = _clozeline_as_typed()
    lines = (f"  {escape(f'{command} {verb}')}  [dim]{purpose}[/]" for verb, purpose in verbs.items() if verb)
    tables.show(["[bold]Next:", *lines])


def _question(params: project.Params) -> str:
    """Return an example command: a sentence that the built-in text's encoder answers well, else a placeholder.

    Without an encoder among the packages, it asks the first task that can be asked so; empty: there is none.
    """
    is_built_in = params.preprocess.source.kind == "python-docs"
    if params.encoder_package is None:
        tasks = ((name, params.finetune[Path(folder).name]) for name, folder in params.export.models.items())
        asked = ((name, "pairs" if task.reads_pairs else task.model_kind) for name, task in tasks)
        return next((f"{ask.EXAMPLES[kind]} --model dist/{name}" for name, kind in asked if kind), "")
    if params.pretrain.objective == "clm":
        return 'complete "Return the number of"' if is_built_in else ask.EXAMPLES["text-generation"]
    return 'fill "Compute the [MASK] deviation along the given axis."' if is_built_in else ask.EXAMPLES["fill-mask"]


def _clozeline_as_typed() -> str:
    """Return the command as it works in this folder, whether or not its environment is activated."""
    command = Path(sys.argv[0]).absolute()
    if command.name == "clozeline" and command.is_relative_to(Path.cwd()):
        return str(command.relative_to(Path.cwd()))
    return "clozeline"


def show_releases(workspace: Workspace, releases: Sequence[Release]) -> None:
    """Print the outcome for each package to standard output."""
    packages = [made.package for made in releases]
    figures = read_figures(workspace, reading.read_params(workspace.root / "params.yaml"), packages)
    _show_packages(workspace, figures, releases)


def _show_packages(workspace: Workspace, figures: dict[str, PackageMetrics], releases: Sequence[Release]) -> None:
    versions = [version_table(workspace, releases)] if releases else []
    reasons = [
        Text(f"{heading}: {reason}")
        for made in releases
        for heading, reason in ((made.outcome, made.reason), ("fp32 is served", made.why_fp32))
        if reason
    ]
    tables.show([package_table(figures, releases), *versions, *reasons])


def read_figures(
    workspace: Workspace, params: project.Params, packages: Sequence[str] | None = None
) -> dict[str, PackageMetrics]:
    """Return the metrics of each package, or of `packages`.

    Raises:
        ArtifactError: a metric file is missing.
    """
    return {
        package: PackageMetrics.read(workspace.root / "metrics", MetricPaths.of(package, model))
        for package, model in params.packages.items()
        if packages is None or package in packages
    }


def stage_table(stages: Sequence[StageResult], seconds: float) -> Table:
    rows = ((stage.name, stage.outcome, f"{stage.seconds:,.1f}") for stage in stages)
    whole = ("the whole command", "", f"{seconds:,.1f}")
    return table_of("Stages", "stage", "outcome", ">seconds", rows=(*rows, None, whole))


def encoder_table(figures: dict[str, PackageMetrics]) -> Table:
    rows = [
        (name, form(getattr(found.quality, figure)), form(getattr(found.quality, f"unigram_{figure}")))
        for found in figures.values()
        if isinstance(found.quality, EncoderMetrics)
        for name, figure, form in _OF_ENCODER
    ]
    return table_of("Encoder, on the whole validation set", "figure", ">encoder", ">unigram baseline", rows=rows)


def task_table(figures: dict[str, PackageMetrics]) -> Table:
    title = "Tasks, on the test set: the encoder beside a simple method and the trivial answer"
    table = table_of(title, "task", "figure", ">encoder", ">95 %", ">simple method", ">trivial")
    tasks = {name: found.quality for name, found in figures.items() if isinstance(found.quality, TaskMetrics)}
    for package, quality in tasks.items():
        top = quality.headline
        shown = ("{:.1%}" if is_share(top.metric) else "{:.3f}").format
        value, low, high, *beside = map(shown, (top.value, top.low, top.high, top.baseline_value, top.trivial_value))
        table.add_row(package, top.metric, f"✗ {value}" if quality.faults else value, f"{low}-{high}", *beside)
    faults = [f"✗ {package}: {fault}" for package, quality in tasks.items() for fault in quality.faults]
    table.caption = escape("\n".join(faults)) or None
    return table


def package_table(figures: dict[str, PackageMetrics], releases: Sequence[Release]) -> Table:
    columns = ("package", ">MB", ">INT8 agrees", ">ms/text", ">ms/batch", "served")
    table = table_of("Packages: fp32 → INT8, on one thread", *columns)
    released = {made.package: made for made in releases}
    for package, found in figures.items():
        export = found.export
        agrees = "none passed" if export.int8_agreement is None else f"{export.int8_agreement:.1%}"
        int8_megabytes = None if export.int8_size_bytes is None else export.int8_size_bytes / 1e6
        times, served = ["", ""], str(export.served)
        if package in released:
            measured, served = released[package].latency, str(released[package].served)
            times = [
                _pair(measured.fp32_text_milliseconds, measured.int8_text_milliseconds),
                _pair(measured.fp32_batch_milliseconds, measured.int8_batch_milliseconds),
            ]
        table.add_row(f"dist/{package}", _pair(export.fp32_size_bytes / 1e6, int8_megabytes), agrees, *times, served)
    return table


def version_table(workspace: Workspace, releases: Sequence[Release]) -> Table:
    registry = Registry.open(tracking_uri(workspace))

    def aliases(model: str) -> str:
        held = {alias: registry.at(model, alias) for alias in (CHAMPION, CANDIDATE, PREVIOUS)}
        return ", ".join(f"{alias} = {version.version}" for alias, version in held.items() if version)

    rows = ((made.model, made.version, made.outcome, aliases(made.model)) for made in releases)
    return table_of("Registered models", "model", ">version", "release", "aliases", rows=rows)


def _pair(fp32: float, int8: float | None) -> str:
    return f"{fp32:,.1f} → {'-' if int8 is None else f'{int8:,.1f}'}"
