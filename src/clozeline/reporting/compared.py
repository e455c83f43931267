"""A metric file as a table: each figure with its interval, and the same figure of others beside it.

Figures are paired by their names: `X_low` and `X_high` are the ends of X's interval, and `unigram_X` or
`baseline_tfidf_X` is X of another method. So a figure that a stage begins to write is shown without a change here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from clozeline.reporting.numbers import format_of
from clozeline.reporting.templates import html

_ENDS: Final = ("_low", "_high")
NAMES: Final[Mapping[str, str]] = {
    "top1": "top-1",
    "top5": "top-5",
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "f1": "F1",
    "mrr": "MRR",
    "matthews": "Matthews correlation",
    "near_duplicates_in_training": "of these, nearly a training text",
    "contained_in_training": "of these, inside a training text",
    "loss_nats_per_token": "loss, nats per token",
    "nats_per_byte": "nats per byte of text",
    "int8_agreement": "INT8 agrees with fp32",
    "parity_max_abs_difference": "largest difference of ONNX from torch",
    "embedding_cosine_mean": "embeddings of INT8 and fp32, mean cosine",
    "embedding_cosine_min": "embeddings of INT8 and fp32, least cosine",
    "unigram_ratio": "unigram baseline's perplexity over ours",
    "perplexity_ratio": "perplexity over the champion's",
}
"""Where a figure's name in words is not its key with spaces."""


def in_words(key: str) -> str:
    return NAMES.get(key, key.removeprefix("num_").replace("_", " "))


def numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """Those of the values that are numbers."""
    return {
        key: float(value)
        for key, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def interval(figures: Mapping[str, Any], key: str) -> str:
    """In words; "" where none was measured."""
    ends = [figures.get(f"{key}{end}") for end in _ENDS]
    if any(end is None for end in ends):
        return ""
    return " – ".join(format_of(key)(float(end)) for end in ends if end is not None)


def comparison(
    caption: str, ours: str, figures: Mapping[str, Any], others: Mapping[str, str], *, only: Sequence[str] = ()
) -> Markup | None:
    """Every figure that another method has, too, and those of `only`; `others`: prefix of a key → name of the method.

    None if there is no such figure.
    """
    given = numbers(figures)
    compared = [key for key in given if not key.endswith(_ENDS) and any(f"{prefix}{key}" in given for prefix in others)]
    keys = [*compared, *(key for key in only if key in given and key not in compared)]
    if not keys:
        return None
    methods = {prefix: name for prefix, name in others.items() if any(f"{prefix}{key}" in given for key in keys)}
    with_interval = any(interval(figures, key) for key in keys)
    ends = [">95 % interval"] if with_interval else []
    rows = [
        (
            in_words(key),
            format_of(key)(given[key]),
            *(format_of(key)(given[f"{prefix}{key}"]) if f"{prefix}{key}" in given else "–" for prefix in methods),
            *([interval(figures, key)] if with_interval else []),
        )
        for key in keys
    ]
    columns = ("figure", f">{ours}", *(f">{name}" for name in methods.values()), *ends)
    return html("table", caption=caption, columns=columns, rows=rows)
