"""Training curves: loss and accuracy in training and on held-out text, learning rate, gradient norm, speed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from markupsafe import Markup

from clozeline.errors import ArtifactError
from clozeline.reporting.charts import Series, lines
from clozeline.reporting.metric_tables import in_words, numbers
from clozeline.reporting.numbers import format_of
from clozeline.reporting.run import Fold, Part, Run
from clozeline.reporting.templates import html
from clozeline.storage.csv_files import Dataclass
from clozeline.training.curves import CurvePoint, Look, SpeedPoint

_STAGE = "pretrain"
_LOSS = "plots/pretrain.csv"


@dataclass(frozen=True)
class _Curve:
    """A column of a CSV file, plotted over the steps."""

    name: str
    path: str
    record: type[Dataclass]
    column: str
    has_dots: bool = False


@dataclass(frozen=True)
class _Chart:
    title: str
    y: str
    curves: Sequence[_Curve]
    note: str = ""


_CHARTS = (
    _Chart(
        "Loss",
        "nats per target",
        (
            _Curve("training", _LOSS, CurvePoint, "loss"),
            _Curve("validation", "plots/pretrain_validation.csv", Look, "loss", has_dots=True),
        ),
        "The training loss is at the mask rate of its step; the validation loss is always at the same rate.",
    ),
    _Chart(
        "Accuracy",
        "share of targets, 0-1",
        (
            _Curve("training", _LOSS, CurvePoint, "accuracy"),
            _Curve("validation", "plots/pretrain_validation.csv", Look, "accuracy", has_dots=True),
        ),
        "Share of hidden or next tokens that are the model's first guess.",
    ),
    _Chart("Learning rate", "", (_Curve("learning rate", _LOSS, CurvePoint, "learning_rate"),)),
    _Chart("Gradient norm", "before clipping", (_Curve("gradient norm", _LOSS, CurvePoint, "gradient_norm"),)),
    _Chart(
        "Speed",
        "tokens per second",
        (_Curve("tokens/s", "plots/timing/pretrain.csv", SpeedPoint, "tokens_per_second"),),
        "On the machine of the last training; padding is not counted.",
    ),
)
"""Charts of the chapter; a new CSV file of the stage needs only a new row."""


def parts(run: Run) -> Iterable[Part | Fold]:
    loss, *others = (partial(_chart, run, chart) for chart in _CHARTS)
    return [loss, Fold("Accuracy, learning rate, gradient norm, speed, and counts", [*others, partial(_figures, run)])]


def _figures(run: Run) -> Markup:
    figures = numbers(run.files.figures("metrics/pretrain.json", stage=_STAGE))
    return html("facts", pairs=[(in_words(key), format_of(key)(value)) for key, value in figures.items()])


def _chart(run: Run, chart: _Chart) -> Markup | None:
    series, missing = [], []
    for curve in chart.curves:
        try:
            points = _points(run, curve)
        except ArtifactError as error:
            missing.append(error)
            continue
        if points:
            series.append(Series(curve.name, points, curve.has_dots))
    if missing and not series:
        raise missing[0]
    if not series:
        return None
    return lines(chart.title, series, x="step", y=chart.y, note=f"{chart.note} {_note_if_stale(run, series)}".strip())


def _points(run: Run, curve: _Curve) -> list[tuple[float, float]]:
    rows: Sequence[Any] = run.files.rows(curve.path, curve.record, stage=_STAGE)
    return [(row.step, getattr(row, curve.column)) for row in rows]


def _note_if_stale(run: Run, series: Sequence[Series]) -> str:
    """Return a note if a curve is from another run: timing files are not outputs of DVC and may be stale."""
    steps = [point.step for point in run.files.rows(_LOSS, CurvePoint, stage=_STAGE)]
    ended = series[0].points[-1][0]
    return f"The curve is from another run, which ended at step {ended:,.0f}." if steps and ended != steps[-1] else ""
