"""The top of the page: the headline figure, each model in one line, and the changes since the last run."""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from markupsafe import Markup

from clozeline.artifacts.export.export_metrics import ExportMetrics
from clozeline.errors import ClozelineError
from clozeline.registry.history import Released
from clozeline.reporting import packages, verdict
from clozeline.reporting.changes import differences
from clozeline.reporting.headline_figures import Judged, judged
from clozeline.reporting.metric_tables import in_words
from clozeline.reporting.numbers import megabytes, milliseconds, share
from clozeline.reporting.run import Part, Run
from clozeline.reporting.templates import code, html
from clozeline.tracking.past_runs import EarlierRun

_NAMED_FIRST = "of the {} tokens are predicted correctly on the first guess"
_NOTHING_EARLIER = "MLflow has no earlier run with other results, so there is nothing to compare with yet."


def parts(run: Run) -> Iterable[Part]:
    return [partial(piece, run) for piece in (_headline, _models, _changes)]


def _headline(run: Run) -> Markup | None:
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
        if first.metric == "top1"
        else f"{in_words(first.metric)} of {first.name}",
        then=_then(first, earlier),
        earlier=earlier,
        releases=[(name, verdict.badge(it), verdict.state(it)) if it else (name, None, "") for name, it in releases],
    )


def _models(run: Run) -> Markup | None:
    models, earlier = judged(run), _earlier(run)
    last = ("last run",) if earlier else ()
    columns = ("model", "figure", "this run", *last, "baseline", "INT8", "one text", "release")
    rows = [
        (
            code(one.name),
            _cell(in_words(one.metric), *one.faults),
            _cell(one.form(one.value), one.interval),
            *([_then(one, earlier) or "–"] if earlier else []),
            _cell(one.form(one.baseline_value), one.baseline),
            *_package(run, next((name for name, model in run.packages.items() if model == one.model), None)),
        )
        for one in models
    ]
    return html("table", caption="Models", columns=columns, rows=rows, kind="models") if models else None


def _package(run: Run, package: str | None) -> tuple[object, ...]:
    """Return the cells for INT8, the latency of one text, and the release."""
    if package is None:
        return ("–", "–", "not exported")
    released = _released(run, package)
    latency = released.latency if released else {}
    size, times = "–", "–"
    with suppress(ClozelineError):
        size = _int8_size(packages.metrics(run, package))
    if "int8_text_milliseconds" in latency:
        beside = f"fp32 {milliseconds(latency['fp32_text_milliseconds'])}; on one thread"
        times = _cell(milliseconds(latency["int8_text_milliseconds"]), beside)
    if released is None:
        return (size, times, "not released")
    served = f"serves {released.version.served}" if released.version.served else ""
    return (size, times, _cell(verdict.badge(released), served))


def _int8_size(figures: ExportMetrics) -> str:
    if figures.int8_size_bytes is None or figures.int8_agreement is None:
        return "–"
    beside = f"fp32 {megabytes(figures.fp32_size_bytes)}; {share(figures.int8_agreement)} agreement"
    return _cell(megabytes(figures.int8_size_bytes), beside)


def _then(one: Judged, earlier: EarlierRun | None) -> Markup | None:
    """Return the figure of the earlier run and the change since then."""
    before = earlier.figures.get(one.tracked_as) if earlier else None
    if before is None:
        return None
    change, kind = one.change_from(before)
    return html("then", value=one.form(before), change=change, kind=kind)


def _changes(run: Run) -> Markup:
    """Return the inputs of the stages that differ from those of the earlier run."""
    earlier = _earlier(run)
    if earlier is None:
        return html("message", tag="p", kind="note", text=_NOTHING_EARLIER)
    since = f"Since the run of {earlier.started:%Y-%m-%d %H:%M} UTC"
    if earlier.lock is None:
        return html(
            "message", tag="p", kind="note", text=f"{since}: its dvc.lock is missing, so the changes are unknown."
        )
    changes = differences([earlier.lock, run.files.lock()])
    columns = ("changed", "then", "now")
    rows = [(code(name), *values) for name, values in changes.items()]
    at = f" at commit {earlier.commit[:10]}" if earlier.commit else ""
    made = html("table", caption=f"{since}{at}", columns=columns, rows=rows)
    named = ", ".join(list(changes)[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")
    return html("folded", summary=f"{since}, this changed: {named or 'nothing that a stage reads'}", body=made)


def _cell(value: str, *beside: str) -> Markup:
    return html("cell", value=value, beside=beside)


def _earlier(run: Run) -> EarlierRun | None:
    try:
        return run.past().earlier
    except ClozelineError:
        return None  # the lineage chapter reports the failure


def _released(run: Run, package: str) -> Released | None:
    try:
        return run.released(package)
    except ClozelineError:
        return None  # the gates chapter reports the failure
