"""The chapter on the text: what was kept, what was dropped and why, and its statistics as tokens."""

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from markupsafe import Markup

from clozeline.reporting.charts import Bar, bars
from clozeline.reporting.metric_tables import in_words, numbers
from clozeline.reporting.numbers import amount, count, format_of, share
from clozeline.reporting.run import Part, Run
from clozeline.reporting.templates import html, joined

_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "empty": "cleaning leaves nothing of the text",
        "unreadable": "the bytes are not text in their declared encoding",
        "redirect": "a wiki page that only redirects to another",
        "not_an_article": "a wiki page that is not an article",
        "too_short": "fewer characters than preprocess.min_characters",
        "exact_duplicate": "equal to an earlier text, up to case and white space",
        "near_duplicate": "similarity to an earlier text of at least preprocess.near_duplicate_similarity",
    }
)
"""Reasons of stage `preprocess` for dropping a text, in words."""


def parts(run: Run) -> Iterable[Part]:
    return [partial(piece, run) for piece in (_kept, _splits, _similarity, _tokens)]


def _metrics(run: Run) -> Mapping[str, Any]:
    return run.files.figures("metrics/preprocess.json", stage="preprocess")


def _kept(run: Run) -> Markup:
    figures = _metrics(run)
    total, dropped = figures.get("documents_in", 0), numbers(figures.get("dropped", {}))
    rows = [("kept", figures.get("kept", 0)), *((reason, times) for reason, times in dropped.items() if times)]
    drawn = [
        Bar(in_words(name), times, f"{count(times)} ({share(times / total) if total else '–'})") for name, times in rows
    ]
    told = [(in_words(name), _REASONS.get(name, "")) for name, times in rows if name in _REASONS]
    split = figures.get("documents_split", 0)
    note = f"{count(split)} texts were longer than preprocess.max_characters and were cut." if split else ""
    meaning = html("folded", summary="What the reasons mean", body=html("facts", pairs=told)) if told else None
    return joined(bars(f"{count(total)} raw texts: kept, and dropped by reason", drawn, note=note), meaning)


def _splits(run: Run) -> Markup | None:
    splits = _metrics(run).get("splits") or {}
    if not splits:
        return None
    columns = list(next(iter(splits.values())))
    rows = [(name, *(count(split.get(column, 0)) for column in columns)) for name, split in splits.items()]
    names = ("split", *(f">{in_words(column)}" for column in columns))
    return html("table", caption="Splits of the text", columns=names, rows=rows)


def _similarity(run: Run) -> Markup | None:
    similarity = numbers(_metrics(run).get("similarity") or {})
    if not similarity:
        return None
    about = "Similar texts go into the same split, so that no test text is a copy of a training text."
    facts = html("facts", pairs=[(in_words(key), count(value)) for key, value in similarity.items()])
    return html("folded", summary="Similar texts", body=joined(html("paragraph", text=about), facts))


def _tokens(run: Run) -> Markup | None:
    metrics = run.files.figures("metrics/tokenize.json", stage="tokenize")
    parts = {name: numbers(figures) for name, figures in metrics.items() if isinstance(figures, dict)}
    if not parts:
        return None
    keys = list(dict.fromkeys(key for figures in parts.values() for key in figures))
    rows = [(in_words(key), *(_token_cell(key, figures.get(key)) for figures in parts.values())) for key in keys]
    caption = f"Tokens, with a vocabulary of {amount(metrics.get('vocab_size', 0))}"
    return html("table", caption=caption, columns=("figure", *(f">{name}" for name in parts)), rows=rows)


def _token_cell(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.3g} %" if key in {"unknown_rate", "vocabulary_use"} else format_of(key)(value)
