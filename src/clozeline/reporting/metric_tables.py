"""A metric file as a table: each figure with its interval, beside the same figure of other methods.

Figures are paired by name: `X_low` and `X_high` are the ends of X's interval, and `unigram_X` or `baseline_tfidf_X` is
X of another method. Therefore a new figure of a stage is shown without a change here.
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
    "near_duplicates_in_training": "of these, near-duplicates of a training text",
    "contained_in_training": "of these, contained in a training text",
    "loss_nats_per_token": "loss, nats per token",
    "nats_per_byte": "nats per byte of text",
    "int8_agreement": "INT8 agrees with fp32",
    "parity_max_abs_difference": "largest difference of ONNX from torch",
    "embedding_cosine_mean": "embeddings of INT8 and fp32, mean cosine",
    "embedding_cosine_min": "embeddings of INT8 and fp32, smallest cosine",
    "token_cosine_mean": "token vectors of INT8 and fp32, mean cosine",
    "token_cosine_min": "token vectors of INT8 and fp32, smallest cosine",
    "unigram_ratio": "perplexity of the unigram baseline / of the encoder",
    "perplexity_ratio": "perplexity / that of the champion",
}
"""Names of figures in words, where they are not just the key with spaces."""


def in_words(key: str) -> str:
    return NAMES.get(key, key.removeprefix("num_").replace("_", " "))


def numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures whose values are numbers."""
    return {
        key: float(value)
        for key, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def interval(figures: Mapping[str, Any], key: str) -> str:
    """Return the interval of a figure in words; "" if none was measured."""
    ends = [figures.get(f"{key}{end}") for end in _ENDS]
    if any(end is None for end in ends):
        return ""
    return " – ".join(format_of(key)(float(end)) for end in ends if end is not None)


def comparison(
    caption: str, ours: str, figures: Mapping[str, Any], others: Mapping[str, str], *, only: Sequence[str] = ()
) -> Markup | None:
    """Return a table of the figures that another method has too, and of those in `only`; None if there are none.

    `others`: prefix of a key → name of the method.
    """
    given = numbers(figures)
    compared = [key for key in given if not key.endswith(_ENDS) and any(f"{prefix}{key}" in given for prefix in others)]
    keys = [*compared, *(key for key in only if key in given and key not in compared)]
    if not keys:
        return None
    methods = {prefix: name for prefix, name in others.items() if any(f"{prefix}{key}" in given for key in keys)}
    has_interval = any(interval(figures, key) for key in keys)
    rows = [
        (
            in_words(key),
            html("cell", value=format_of(key)(given[key]), beside=[interval(figures, key)]),
            *(format_of(key)(given[f"{prefix}{key}"]) if f"{prefix}{key}" in given else "–" for prefix in methods),
        )
        for key in keys
    ]
    named = f"{ours}, 95 % interval" if has_interval else ours
    columns = ("figure", *(f">{name}" for name in (named, *methods.values())))
    return html("table", caption=caption, columns=columns, rows=rows)
