"""How figures are written: their names in words, and their values by the ending of their key.

Figures are paired by name: `X_low` and `X_high` are the ends of X's interval. Therefore a new figure of a stage is
shown without a change here.
"""

from collections.abc import Callable, Mapping
from typing import Any

Format = Callable[[float], str]
_NARROW = "\N{NARROW NO-BREAK SPACE}"
ENDS = ("_low", "_high")
# Names of figures in words, where they are not just the key with spaces.
NAMES: Mapping[str, str] = {
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
_CORRELATIONS = frozenset({"matthews", "spearman", "Spearman correlation"})


def share(value: float) -> str:
    """Format a share as a percentage: 0.392 → 39.2 %."""
    return f"{100 * value:.1f}{_NARROW}%"


def count(value: float) -> str:
    return f"{value:,.0f}"


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.2f}{_NARROW}MB"


def milliseconds(value: float) -> str:
    return f"{value:,.1f}{_NARROW}ms"


def seconds(value: float) -> str:
    return f"{value:,.0f}{_NARROW}s"


def amount(value: float) -> str:
    """Format with about four significant digits; whole numbers in full."""
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    decimals = next((places for least, places in ((100, 1), (10, 2), (1, 3)) if abs(value) >= least), None)
    return f"{value:.4g}" if decimals is None else f"{value:,.{decimals}f}"


def short(value: float) -> str:
    """Format for the ticks of an axis: 4,500 → 4.5k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def difference(value: float, form: Format) -> str:
    """Format a difference of two figures with its sign; shares in percentage points."""
    return f"{100 * value:+.1f} points" if form is share else f"{value:+.3g}"


_BY_ENDING: Mapping[str, Format] = {
    "learning_rate": amount,  # before "_rate"
    "_bytes": count,
    "accuracy": share,
    "agreement": share,
    "f1": share,
    "precision": share,
    "recall": share,
    "recall_at_1": share,
    "_fraction": share,
    "exact_match": share,
    "top1": share,
    "top5": share,
    "_rate": share,
    "_milliseconds": milliseconds,
}


def format_of(key: str) -> Format:
    """Return the format of figure `key` of a metric file, chosen by the ending of its name."""
    name = key.removesuffix("_low").removesuffix("_high")
    return next((form for ending, form in _BY_ENDING.items() if name.endswith(ending)), amount)


def in_words(key: str) -> str:
    return NAMES.get(key, key.removeprefix("num_").replace("_", " "))


def is_share(metric: str) -> bool:
    """Return whether the metric of a task, or of the exam of its package, is a share; a correlation is not."""
    return metric not in _CORRELATIONS


def of_metric(metric: str) -> Format:
    return share if is_share(metric) else amount


def pair(key: str, value: float) -> tuple[str, str]:
    """Return the name of a figure in words, and its value."""
    return in_words(key), format_of(key)(value)


def numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures whose values are numbers."""
    return {
        key: float(value)
        for key, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def interval(figures: Mapping[str, Any], key: str) -> str:
    """Return the interval of a figure in words; "" if none was measured."""
    ends = [figures.get(f"{key}{end}") for end in ENDS]
    if any(end is None for end in ends):
        return ""
    return " – ".join(format_of(key)(float(end)) for end in ends if end is not None)
