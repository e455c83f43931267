"""Quality of the encoder: its figures beside the unigram baseline, and the distribution of its loss."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from markupsafe import Markup

from clozeline.artifacts.evaluate.encoder_metrics import EncoderMetrics
from clozeline.artifacts.evaluate.loss_tables import CalibrationRow, FrequencyRow, PlaceRow, WordClassRow
from clozeline.reporting.charts import Bar, Series, bars, lines
from clozeline.reporting.metric_tables import comparison, in_words
from clozeline.reporting.numbers import amount, count, format_of, share
from clozeline.reporting.run import Fold, Part, Run
from clozeline.reporting.templates import html
from clozeline.storage.csv_files import Dataclass

_METRICS = "metrics/evaluate.json"
_STAGE = "evaluate"
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


def parts(run: Run) -> Iterable[Part | Fold]:
    charts = [partial(chart.drawn, run) for chart in _CHARTS]
    return [
        partial(_figures, run),
        Fold("Distribution of the loss, and the validation text", [partial(_counts, run), *charts]),
    ]


def metrics(run: Run) -> EncoderMetrics:
    return run.files.json(_METRICS, EncoderMetrics, stage=_STAGE)


def _figures(run: Run) -> Markup | None:
    figures = metrics(run)
    caption = f"On the whole validation set: {count(figures.target_tokens)} tokens, each {_ONCE[run.is_causal]}"
    if figures.pseudo_documents is not None and figures.pseudo_target_tokens is not None:
        tokens, documents = count(figures.pseudo_target_tokens), count(figures.pseudo_documents)
        caption += f"; {tokens} of them, in {documents} documents, also hidden alone (pseudo-log-likelihood)"
    others = {"pseudo_": "each hidden alone", "unigram_": "unigram baseline"}
    return comparison(caption, "encoder", figures.model_dump(), others, only=_ALONE)


def _counts(run: Run) -> Markup | None:
    """Return the size of the validation set and its contamination."""
    figures = metrics(run).model_dump()
    pairs = [(in_words(key), format_of(key)(figures[key])) for key in _COUNTED if key in figures]
    return html("facts", pairs=pairs) if pairs else None


@dataclass(frozen=True)
class _Chart:
    """One CSV file of the stage as a chart."""

    path: str
    record: type[Dataclass]
    draw: Callable[[Sequence[Any]], Markup]

    def drawn(self, run: Run) -> Markup | None:
        rows = run.files.rows(self.path, self.record, stage=_STAGE)
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
            f"{amount(row.loss_nats_per_token)} nats · top-1 {share(row.top1)} · {count(row.targets)}",
        )
        for row in rows
    ]
    return bars(title, drawn, note=note)


_CHARTS = (
    _Chart("plots/evaluate/calibration.csv", CalibrationRow, _reliability),
    _Chart("plots/evaluate/place.csv", PlaceRow, _by_place),
    _Chart(
        "plots/evaluate/frequency.csv",
        FrequencyRow,
        partial(
            _by_group,
            "Loss by frequency of the token in the training text",
            "times_in_training",
            "Each bar: loss per token, share of right first guesses, and number of tokens.",
        ),
    ),
    _Chart(
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
