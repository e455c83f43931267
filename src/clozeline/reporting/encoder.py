"""The encoder's chapters: its figures beside the unigram baseline, the distribution of its loss, and training curves.

The curves show loss and accuracy in training and on held-out text, learning rate, gradient norm and speed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from markupsafe import Markup

from clozeline.records.evaluation import CalibrationRow, EncoderMetrics, FrequencyRow, PlaceRow, WordClassRow
from clozeline.records.finetune.task_metrics import Headline
from clozeline.reporting import formats
from clozeline.reporting.charts import Bar, Series, bars, lines
from clozeline.reporting.run import Fold, Part, ReportedRun, comparison, facts
from clozeline.system import errors, files
from clozeline.training.curves import CurvePoint, SpeedPoint, ValidationPass

_METRICS = "metrics/evaluate.json"
_EVALUATE = "evaluate"
# Figures that the unigram baseline does not have.
_ALONE = ("nats_per_byte", "expected_calibration_error")
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


def evaluation_parts(run: ReportedRun) -> Iterable[Part | Fold]:
    folded = (_counts, _reliability, _by_place, _by_frequency, _by_word_class)
    return [
        partial(_encoder_figures, run),
        Fold("Distribution of the loss, and the validation text", [partial(piece, run) for piece in folded]),
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
    made, _ = comparison(caption, "encoder", figures.model_dump(), others, only=_ALONE)
    return made


def _counts(run: ReportedRun) -> Markup | None:
    """Return the size of the validation set and its contamination."""
    figures = metrics(run).model_dump()
    pairs = [formats.pair(key, figures[key]) for key in _COUNTED if key in figures]
    return facts(pairs) if pairs else None


def _reliability(run: ReportedRun) -> Markup | None:
    rows = run.files.rows("plots/evaluate/calibration.csv", CalibrationRow, stage=_EVALUATE)
    series = [Series("encoder", [(row.mean_confidence, row.accuracy) for row in rows], has_dots=True)]
    x, y = "confidence of the first guess", "share of right first guesses"
    note = "On the diagonal, confidence equals accuracy; below it, the encoder is overconfident."
    return lines("Calibration", series, x=x, y=y, note=note, are_shares=True)


def _by_place(run: ReportedRun) -> Markup | None:
    rows = run.files.rows("plots/evaluate/place.csv", PlaceRow, stage=_EVALUATE)
    points = [((row.place_from + row.place_to) / 2, row.loss_nats_per_token) for row in rows]
    note = "Tokens at both ends of a row have less context."
    series = [Series("encoder", points, has_dots=True)]
    return lines("Loss by position in the row", series, x="position, counted from [CLS]", y="nats per token", note=note)


def _by_frequency(run: ReportedRun) -> Markup | None:
    rows = run.files.rows("plots/evaluate/frequency.csv", FrequencyRow, stage=_EVALUATE)
    drawn = [_bar(row.times_in_training, row) for row in rows]
    note = "Each bar: loss per token, share of right first guesses, and number of tokens."
    return bars("Loss by frequency of the token in the training text", drawn, note=note)


def _by_word_class(run: ReportedRun) -> Markup | None:
    rows = run.files.rows("plots/evaluate/word_class.csv", WordClassRow, stage=_EVALUATE)
    note = "A token is a whole word, the first piece of a word, or a later piece, which earlier ones partly reveal."
    return bars("Loss by kind of token", [_bar(row.word_class, row) for row in rows], note=note)


def _bar(label: str, row: FrequencyRow | WordClassRow) -> Bar:
    loss = row.loss_nats_per_token
    return Bar(label, loss, f"{formats.amount(loss)} nats · top-1 {formats.share(row.top1)} · {row.targets:,}")


@dataclass(frozen=True)
class _Curve:
    """A CSV file with a row for each of some steps."""

    name: str
    path: str
    record: type[files.Dataclass]
    has_dots: bool = False

    def rows(self, run: ReportedRun) -> Sequence[Any]:
        return run.files.rows(self.path, self.record, stage=_PRETRAIN)


@dataclass(frozen=True)
class _CurveChart:
    """A column of some curves, plotted over the steps."""

    title: str
    y: str
    column: str
    curves: Sequence[_Curve]
    note: str = ""


_TRAINING = _Curve("training", "plots/pretrain.csv", CurvePoint)
_VALIDATION = _Curve("validation", "plots/pretrain_validation.csv", ValidationPass, has_dots=True)
_TIMING = _Curve("tokens/s", "plots/timing/pretrain.csv", SpeedPoint)
# Charts of the chapter; a new column of the stage needs only a new row.
_CURVE_CHARTS = (
    _CurveChart(
        "Loss",
        "nats per target",
        "loss",
        (_TRAINING, _VALIDATION),
        "The training loss is at the mask rate of its step; the validation loss is always at the same rate.",
    ),
    _CurveChart(
        "Accuracy",
        "share of targets, 0-1",
        "accuracy",
        (_TRAINING, _VALIDATION),
        "Share of hidden or next tokens that are the model's first guess.",
    ),
    _CurveChart("Learning rate", "", "learning_rate", (_TRAINING,)),
    _CurveChart("Gradient norm", "before clipping", "gradient_norm", (_TRAINING,)),
    _CurveChart(
        "Speed",
        "tokens per second",
        "tokens_per_second",
        (_TIMING,),
        "On the last training's machine, without padding.",
    ),
)


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
    """Draw the curves that there are; raises ArtifactError if all are missing."""
    series, missing = [], []
    for curve in chart.curves:
        try:
            points = [(row.step, getattr(row, chart.column)) for row in curve.rows(run)]
        except errors.ArtifactError as error:
            missing.append(error)
        else:
            series += [Series(curve.name, points, curve.has_dots)] if points else []
    if missing and not series:
        raise missing[0]
    note = f"{chart.note} {_note_if_stale(run, series)}".strip()
    return lines(chart.title, series, x="step", y=chart.y, note=note)


def _note_if_stale(run: ReportedRun, series: Sequence[Series]) -> str:
    """Return a note if a curve is from another run: timing files are not outputs of DVC and may be stale."""
    steps = [point.step for point in _TRAINING.rows(run)] if series else []
    ended = series[0].points[-1][0] if series else 0
    return f"The curve is from another run, which ended at step {ended:,.0f}." if steps and ended != steps[-1] else ""
