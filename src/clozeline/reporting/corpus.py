"""The text: what was kept of it, what was dropped and why, and what became of it as tokens."""

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from markupsafe import Markup

from clozeline.reporting.charts import Bar, bars
from clozeline.reporting.compared import in_words, numbers
from clozeline.reporting.numbers import amount, count, format_of, share
from clozeline.reporting.run import Part, Run
from clozeline.reporting.templates import html, joined

_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "empty": "nothing is left of it after cleaning",
        "unreadable": "it is not text in the encoding that it says",
        "redirect": "a wiki page that only names another",
        "not_an_article": "a wiki page of another kind",
        "too_short": "fewer characters than preprocess.min_characters",
        "exact_duplicate": "the same text, up to case and white space, came before",
        "near_duplicate": "as similar to a text before as preprocess.near_duplicate_similarity",
    }
)
"""Why preprocess drops a text, in words."""


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
    note = f"{count(split)} were longer than preprocess.max_characters and cut into parts." if split else ""
    meaning = html("folded", summary="What the reasons mean", body=html("facts", pairs=told)) if told else None
    return joined(bars(f"What became of {count(total)} texts", drawn, note=note), meaning)


def _splits(run: Run) -> Markup | None:
    splits = _metrics(run).get("splits") or {}
    if not splits:
        return None
    columns = list(next(iter(splits.values())))
    rows = [(name, *(count(split.get(column, 0)) for column in columns)) for name, split in splits.items()]
    names = ("part", *(f">{in_words(column)}" for column in columns))
    return html("table", caption="Parts of the text", columns=names, rows=rows)


def _similarity(run: Run) -> Markup | None:
    similarity = numbers(_metrics(run).get("similarity") or {})
    if not similarity:
        return None
    about = "Similar texts stay on one side of every split, so that no test text is a copy of a training text."
    facts = html("facts", pairs=[(in_words(key), count(value)) for key, value in similarity.items()])
    return html("folded", summary="Similar texts", body=joined(html("paragraph", text=about), facts))


def _tokens(run: Run) -> Markup | None:
    metrics = run.files.figures("metrics/tokenize.json", stage="tokenize")
    parts = {name: numbers(figures) for name, figures in metrics.items() if isinstance(figures, dict)}
    if not parts:
        return None
    keys = list(dict.fromkeys(key for figures in parts.values() for key in figures))
    rows = [(in_words(key), *(_token_cell(key, figures.get(key)) for figures in parts.values())) for key in keys]
    caption = f"As tokens, of a vocabulary of {amount(metrics.get('vocab_size', 0))}"
    return html("table", caption=caption, columns=("figure", *(f">{name}" for name in parts)), rows=rows)


def _token_cell(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.3g} %" if key in {"unknown_rate", "vocabulary_use"} else format_of(key)(value)
