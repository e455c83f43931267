"""The encoder's chapters: its figures beside the unigram baseline, the distribution of its loss, and training curves.

The curves show loss and accuracy in training and on held-out text, learning rate, gradient norm and speed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from markupsafe import Markup

from clozeline.records.evaluation import CalibrationRow, EncoderMetrics, FrequencyRow, PlaceRow, WordClassRow
from clozeline.records.finetune.task_metrics import Headline
from clozeline.reporting import formats
from clozeline.reporting.charts import Bar, Series, bars, lines
from clozeline.reporting.run import Fold, Part, ReportedRun, comparison, facts
from clozeline.system.errors import ArtifactError
from clozeline.system.files import Dataclass
from clozeline.training.curves import CurvePoint, SpeedPoint, ValidationPass

_METRICS = "metrics/evaluate.json"
_EVALUATE = "evaluate"
_ALONE = ("nats_per_byte", "expected_calibration_error")
"""Figures that the unigram baseline does not have."""
_COUNTED = (
    "validation_documents",
    "text_bytes",
    "unknown_tokens",
    "texts_compared_with_training",
    "near_duplicates_in_training",
    "contained_in_training",
    "contaminated_fraction",
)

_ONCE = {False: "hidden once", True: "predicted from the tokens before it"}
_PRETRAIN = "pretrain"
_LOSS = "plots/pretrain.csv"


def evaluation_parts(run: ReportedRun) -> Iterable[Part | Fold]:
    charts = [partial(chart.drawn, run) for chart in _EVALUATION_CHARTS]
    return [
        partial(_encoder_figures, run),
        Fold("Distribution of the loss, and the validation text", [partial(_counts, run), *charts]),
    ]


def metrics(run: ReportedRun) -> EncoderMetrics:
    return run.files.json(_METRICS, EncoderMetrics, stage=_EVALUATE)


def headline(run: ReportedRun) -> Headline:
    """Return the figure that the encoder is compared by, beside that of the unigram baseline."""
    figures, beside = metrics(run), "unigram baseline"
    return Headline(
        metric="top1",
        value=figures.top1,
        low=figures.top1_low,
        high=figures.top1_high,
        baseline=beside,
        baseline_value=figures.unigram_top1,
        trivial=beside,
        trivial_value=figures.unigram_top1,
    )


def _encoder_figures(run: ReportedRun) -> Markup | None:
    figures = metrics(run)
    caption = f"On the whole validation set: {formats.count(figures.target_tokens)} tokens, each {_ONCE[run.is_causal]}"
    if figures.pseudo_documents is not None and figures.pseudo_target_tokens is not None:
        tokens, documents = formats.count(figures.pseudo_target_tokens), formats.count(figures.pseudo_documents)
        caption += f"; {tokens} of them, in {documents} documents, also hidden alone (pseudo-log-likelihood)"
    others = {"pseudo_": "each hidden alone", "unigram_": "unigram baseline"}
    return comparison(caption, "encoder", figures.model_dump(), others, only=_ALONE)


def _counts(run: ReportedRun) -> Markup | None:
    """Return the size of the validation set and its contamination."""
    figures = metrics(run).model_dump()
    pairs = [formats.pair(key, figures[key]) for key in _COUNTED if key in figures]
    return facts(pairs) if pairs else None


@dataclass(frozen=True)
class _PlotFile:
    """One CSV file of the stage as a chart."""

    path: str
    record: type[Dataclass]
    draw: Callable[[Sequence[Any]], Markup]

    def drawn(self, run: ReportedRun) -> Markup | None:
        rows = run.files.rows(self.path, self.record, stage=_EVALUATE)
        return self.draw(rows) if rows else None


def _reliability(rows: Sequence[CalibrationRow]) -> Markup:
    points = [(row.mean_confidence, row.accuracy) for row in rows]
    return lines(
        "Calibration",
        [Series("encoder", points, has_dots=True)],
        x="confidence of the first guess",
        y="share of right first guesses",
        limits=(0.0, 1.0),
        has_diagonal=True,
        note="On the diagonal, confidence equals accuracy; below it, the encoder is overconfident.",
    )


def _by_place(rows: Sequence[PlaceRow]) -> Markup:
    points = [((row.place_from + row.place_to) / 2, row.loss_nats_per_token) for row in rows]
    return lines(
        "Loss by position in the row",
        [Series("encoder", points, has_dots=True)],
        x="position, counted from [CLS]",
        y="nats per token",
        note="Tokens at both ends of a row have less context.",
    )


def _by_group(title: str, column: str, note: str, rows: Sequence[FrequencyRow | WordClassRow]) -> Markup:
    drawn = [
        Bar(
            getattr(row, column),
            row.loss_nats_per_token,
            f"{formats.amount(row.loss_nats_per_token)} nats · top-1 {formats.share(row.top1)} · {row.targets:,}",
        )
        for row in rows
    ]
    return bars(title, drawn, note=note)


_EVALUATION_CHARTS = (
    _PlotFile("plots/evaluate/calibration.csv", CalibrationRow, _reliability),
    _PlotFile("plots/evaluate/place.csv", PlaceRow, _by_place),
    _PlotFile(
        "plots/evaluate/frequency.csv",
        FrequencyRow,
        partial(
            _by_group,
            "Loss by frequency of the token in the training text",
            "times_in_training",
            "Each bar: loss per token, share of right first guesses, and number of tokens.",
        ),
    ),
    _PlotFile(
        "plots/evaluate/word_class.csv",
        WordClassRow,
        partial(
            _by_group,
            "Loss by kind of token",
            "word_class",
            "A token is a whole word, the first piece of a longer one, or a later piece, which earlier pieces partly"
            " reveal.",
        ),
    ),
)
"""Charts of the chapter; a new CSV file of the stage needs only a new row."""


@dataclass(frozen=True)
class _Curve:
    """A column of a CSV file, plotted over the steps."""

    name: str
    path: str
    record: type[Dataclass]
    column: str
    has_dots: bool = False


@dataclass(frozen=True)
class _CurveChart:
    title: str
    y: str
    curves: Sequence[_Curve]
    note: str = ""


_CURVE_CHARTS = (
    _CurveChart(
        "Loss",
        "nats per target",
        (
            _Curve("training", _LOSS, CurvePoint, "loss"),
            _Curve("validation", "plots/pretrain_validation.csv", ValidationPass, "loss", has_dots=True),
        ),
        "The training loss is at the mask rate of its step; the validation loss is always at the same rate.",
    ),
    _CurveChart(
        "Accuracy",
        "share of targets, 0-1",
        (
            _Curve("training", _LOSS, CurvePoint, "accuracy"),
            _Curve("validation", "plots/pretrain_validation.csv", ValidationPass, "accuracy", has_dots=True),
        ),
        "Share of hidden or next tokens that are the model's first guess.",
    ),
    _CurveChart("Learning rate", "", (_Curve("learning rate", _LOSS, CurvePoint, "learning_rate"),)),
    _CurveChart("Gradient norm", "before clipping", (_Curve("gradient norm", _LOSS, CurvePoint, "gradient_norm"),)),
    _CurveChart(
        "Speed",
        "tokens per second",
        (_Curve("tokens/s", "plots/timing/pretrain.csv", SpeedPoint, "tokens_per_second"),),
        "On the machine of the last training; padding is not counted.",
    ),
)
"""Charts of the chapter; a new CSV file of the stage needs only a new row."""


def curve_parts(run: ReportedRun) -> Iterable[Part | Fold]:
    loss, *others = (partial(_chart, run, chart) for chart in _CURVE_CHARTS)
    return [
        loss,
        Fold("Accuracy, learning rate, gradient norm, speed, and counts", [*others, partial(_training_figures, run)]),
    ]


def _training_figures(run: ReportedRun) -> Markup:
    figures = formats.numbers(run.files.figures("metrics/pretrain.json", stage=_PRETRAIN))
    return facts([formats.pair(key, value) for key, value in figures.items()])


def _chart(run: ReportedRun, chart: _CurveChart) -> Markup | None:
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


def _points(run: ReportedRun, curve: _Curve) -> list[tuple[float, float]]:
    rows: Sequence[Any] = run.files.rows(curve.path, curve.record, stage=_PRETRAIN)
    return [(row.step, getattr(row, curve.column)) for row in rows]


def _note_if_stale(run: ReportedRun, series: Sequence[Series]) -> str:
    """Return a note if a curve is from another run: timing files are not outputs of DVC and may be stale."""
    steps = [point.step for point in run.files.rows(_LOSS, CurvePoint, stage=_PRETRAIN)]
    ended = series[0].points[-1][0]
    return f"The curve is from another run, which ended at step {ended:,.0f}." if steps and ended != steps[-1] else ""
