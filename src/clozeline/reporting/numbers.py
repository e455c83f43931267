"""Human-readable formats of figures."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

Format = Callable[[float], str]
_NARROW: Final = "\N{NARROW NO-BREAK SPACE}"


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


_BY_ENDING: Final[Mapping[str, Format]] = MappingProxyType(
    {
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
)


def format_of(key: str) -> Format:
    """Return the format of figure `key` of a metric file, chosen by the ending of its name."""
    name = key.removesuffix("_low").removesuffix("_high")
    return next((form for ending, form in _BY_ENDING.items() if name.endswith(ending)), amount)
