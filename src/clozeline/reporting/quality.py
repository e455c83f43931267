"""How good the encoder is: its figures beside the unigram baseline's, and where its loss is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from clozeline.artifacts.loss_tables import CalibrationRow, FrequencyRow, PlaceRow, WordClassRow
from clozeline.reporting.charts import Bar, Series, bars, lines
from clozeline.reporting.compared import comparison, in_words
from clozeline.reporting.numbers import amount, count, format_of, share
from clozeline.reporting.run import Part, Run
from clozeline.reporting.templates import html, joined

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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


def parts(run: Run) -> Iterable[Part]:
    return [partial(piece, run) for piece in (_figures, _counts, _shares, _charts)]


def metrics(run: Run) -> Mapping[str, Any]:
    return run.files.figures(_METRICS, stage=_STAGE)


def _figures(run: Run) -> Markup | None:
    figures = metrics(run)
    caption = f"On the whole validation set: {count(figures.get('target_tokens', 0))} tokens, each hidden once"
    if "pseudo_documents" in figures:
        tokens, documents = (count(figures[f"pseudo_{what}"]) for what in ("target_tokens", "documents"))
        caption += f"; {tokens} of them, in {documents} documents, each alone too (pseudo-log-likelihood)"
    others = {"pseudo_": "each hidden alone", "unigram_": "unigram baseline"}
    return comparison(caption, "encoder", figures, others, only=_ALONE)


def _counts(run: Run) -> Markup | None:
    """What was asked, and how much of it the encoder may have seen."""
    figures = metrics(run)
    told = [(in_words(key), format_of(key)(figures[key])) for key in _COUNTED if key in figures]
    return html("facts", pairs=told) if told else None


def _shares(run: Run) -> Markup | None:
    figures = metrics(run)
    keys = [key for key in ("top1", "top5") if {key, f"unigram_{key}"} <= figures.keys()]
    rows = [
        Bar(
            in_words(key),
            figures[key],
            share(figures[key]),
            figures.get(f"{key}_low"),
            figures.get(f"{key}_high"),
            (("unigram baseline", figures[f"unigram_{key}"]),),
        )
        for key in keys
    ]
    note = "Share of the hidden tokens that are the first guess, or among the first five."
    return bars("Hidden tokens named", rows, note=note, most=1.0) if rows else None


@dataclass(frozen=True)
class _Chart:
    """One CSV file of the stage as a chart."""

    path: str
    record: "type[DataclassInstance]"
    draw: Callable[[Sequence[Any]], Markup]


def _charts(run: Run) -> Markup:
    drawn = [chart.draw(rows) for chart in _CHARTS if (rows := run.files.rows(chart.path, chart.record, stage=_STAGE))]
    return joined(*drawn)


def _reliability(rows: Sequence[CalibrationRow]) -> Markup:
    points = [(row.mean_confidence, row.accuracy) for row in rows]
    return lines(
        "Calibration",
        [Series("encoder", points, has_dots=True)],
        x="how sure it was of its first guess",
        y="how often that was right",
        limits=(0.0, 1.0),
        has_diagonal=True,
        note="On the diagonal, confidence is honest; below it, the encoder is too sure of itself.",
    )


def _by_place(rows: Sequence[PlaceRow]) -> Markup:
    points = [((row.place_from + row.place_to) / 2, row.loss_nats_per_token) for row in rows]
    return lines(
        "Loss by place in the row",
        [Series("encoder", points, has_dots=True)],
        x="place, counted from [CLS]",
        y="nats per token",
        note="At both ends of a row there is less text around to go by.",
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
            "Loss by how often a token is in the training text",
            "times_in_training",
            "Loss per token, share named by the first guess, and how many tokens that is of.",
        ),
    ),
    _Chart(
        "plots/evaluate/word_class.csv",
        WordClassRow,
        partial(
            _by_group,
            "Loss by kind of token",
            "word_class",
            "A whole word, the first piece of a longer one, or a later piece, which those before it give away in part.",
        ),
    ),
)
"""A row for each; a new CSV of the stage is a new row."""
