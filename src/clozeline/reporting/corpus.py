"""The chapter on the text: counts of kept and dropped texts, the reasons, and token statistics."""

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from markupsafe import Markup

from clozeline.artifacts.preprocess.corpus_metrics import CorpusMetrics, SplitMetrics
from clozeline.artifacts.tokenize.token_metrics import TokenMetrics
from clozeline.reporting.charts import Bar, bars
from clozeline.reporting.metric_tables import in_words
from clozeline.reporting.numbers import amount, count, format_of, share
from clozeline.reporting.run import Part, Run
from clozeline.reporting.templates import html, joined

_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "empty": "cleaning leaves nothing of the text",
        "unreadable": "the bytes are not text in their declared encoding",
        "redirect": "a wiki page that only redirects to another",
        "not_an_article": "a wiki page that is not an article",
        "too_short": "fewer characters than preprocess.min_characters, or words than preprocess.min_words",
        "exact_duplicate": "equal to an earlier text, up to case and white space",
        "near_duplicate": "similarity to an earlier text of at least preprocess.near_duplicate_similarity",
        "two_splits": "similar to earlier texts of two splits",
        "full_group": "similar to the texts of a validation or holdout group that has as many as it may have",
        "bad_record": "a record that cannot be read; data/clean/bad_records.jsonl has its place",
        "forgotten": "a text that `clozeline forget` named",
    }
)
"""Reasons of stage `preprocess` for dropping a text, in words."""


def parts(run: Run) -> Iterable[Part]:
    return [partial(piece, run) for piece in (_kept, _splits, _similarity, _tokens)]


def _metrics(run: Run) -> CorpusMetrics:
    return run.files.json("metrics/preprocess.json", CorpusMetrics, stage="preprocess")


def _kept(run: Run) -> Markup:
    figures = _metrics(run)
    total = figures.documents_in
    rows = [("kept", figures.kept), *((reason, times) for reason, times in figures.dropped.items() if times)]
    drawn = [Bar(in_words(name), times, f"{count(times)} ({share(times / total)})") for name, times in rows]
    reasons = [(in_words(name), _REASONS[name]) for name, _ in rows if name in _REASONS]
    split = figures.documents_split
    note = f"{count(split)} texts were longer than preprocess.max_characters and were cut." if split else ""
    meaning = html("folded", summary="What the reasons mean", body=html("facts", pairs=reasons)) if reasons else None
    altered = [(in_words(kind), count(times)) for kind, times in figures.altered.items() if times]
    removed = html(
        "folded", summary="Characters that cleaning left out, in documents", body=html("facts", pairs=altered)
    )
    drawing = bars(f"{count(total)} raw texts: kept, and dropped by reason", drawn, note=note)
    return joined(drawing, meaning, removed if altered else None)


def _splits(run: Run) -> Markup:
    rows = [(name, *(count(number) for _, number in split)) for name, split in _metrics(run).splits.items()]
    names = ("split", *(f">{in_words(column)}" for column in SplitMetrics.model_fields))
    return html("table", caption="Splits of the text", columns=names, rows=rows)


def _similarity(run: Run) -> Markup:
    about = "Similar texts go into the same split, so that no test text is a copy of a training text."
    facts = html("facts", pairs=[(in_words(key), count(value)) for key, value in _metrics(run).similarity])
    return html("folded", summary="Similar texts", body=joined(html("paragraph", text=about), facts))


def _tokens(run: Run) -> Markup:
    metrics = run.files.json("metrics/tokenize.json", TokenMetrics, stage="tokenize")
    beside = zip(metrics.train, metrics.validation, strict=True)
    rows = [(in_words(key), _token_cell(key, train), _token_cell(key, held)) for (key, train), (_, held) in beside]
    caption = f"Tokens, with a vocabulary of {amount(metrics.vocab_size)}"
    return html("table", caption=caption, columns=("figure", ">train", ">validation"), rows=rows)


def _token_cell(key: str, value: float) -> str:
    return f"{100 * value:.3g} %" if key in {"unknown_rate", "vocabulary_use"} else format_of(key)(value)
