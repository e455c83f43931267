"""How the training went: loss, held-out loss, learning rate, gradient norm, speed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from clozeline.artifacts.curves import CurvePoint, Look, SpeedPoint
from clozeline.errors import ArtifactError
from clozeline.reporting.charts import Series, lines
from clozeline.reporting.compared import in_words, numbers
from clozeline.reporting.numbers import format_of
from clozeline.reporting.run import Part, Run
from clozeline.reporting.templates import html

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_STAGE = "pretrain"
_LOSS = "plots/pretrain.csv"


@dataclass(frozen=True)
class _Curve:
    """A column of a CSV file over the steps."""

    name: str
    path: str
    record: "type[DataclassInstance]"
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
            _Curve("in training", _LOSS, CurvePoint, "loss"),
            _Curve("on held-out text", "plots/pretrain_validation.csv", Look, "loss", has_dots=True),
        ),
        "In training at the mask rate of each step; on held-out text always at the same one.",
    ),
    _Chart("Learning rate", "", (_Curve("learning rate", _LOSS, CurvePoint, "learning_rate"),)),
    _Chart("Gradient norm", "before clipping", (_Curve("gradient norm", _LOSS, CurvePoint, "gradient_norm"),)),
    _Chart(
        "Speed",
        "tokens per second",
        (_Curve("tokens/s", "plots/timing/pretrain.csv", SpeedPoint, "tokens_per_second"),),
        "On the machine where it was trained last; padding is not counted.",
    ),
)
"""A row for each; a new CSV of the stage is a new row."""


def parts(run: Run) -> Iterable[Part]:
    return [partial(_figures, run), *(partial(_chart, run, chart) for chart in _CHARTS)]


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
    return lines(chart.title, series, x="step", y=chart.y, note=f"{chart.note} {_of_another_run(run, series)}".strip())


def _points(run: Run, curve: _Curve) -> list[tuple[float, float]]:
    rows: Sequence[Any] = run.files.rows(curve.path, curve.record, stage=_STAGE)
    return [(row.step, getattr(row, curve.column)) for row in rows]


def _of_another_run(run: Run, series: Sequence[Series]) -> str:
    """What a clock makes is no output of DVC: a curve of it may be left from a run before."""
    steps = [point.step for point in run.files.rows(_LOSS, CurvePoint, stage=_STAGE)]
    ended = series[0].points[-1][0]
    return f"It is of another run, which ended at step {ended:,.0f}." if steps and ended != steps[-1] else ""
