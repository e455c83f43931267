"""Numbers as the page shows them: two significant digits and a unit."""

from collections.abc import Iterable, Sequence

_TIMES = ((86_400 * 365.25, " years"), (86_400, " days"), (3600, " h"), (60, " min"), (1, " s"))
_BYTES = ((1e15, " PB"), (1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB"))
_COUNTS = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"), (1, ""))


def two_digits(value: float) -> str:
    """Return the number rounded to two significant digits, without an exponent: 8,300; 12; 1.3; 0.026."""
    rounded = float(f"{value:.1e}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}" if rounded else "0"


def time_of(seconds: float) -> str:
    return _in_units(seconds, _TIMES, 1.5)  # 90 min, but 2 h


def bytes_of(size: float) -> str:
    return _in_units(size, _BYTES)


def count_of(number: float) -> str:
    return _in_units(number, _COUNTS)


def dollars_of(amount: float) -> str:
    return f"${two_digits(amount)}" if amount >= 0.01 else "under $0.01"


def table_of(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _in_units(value: float, units: Sequence[tuple[float, str]], least: float = 1.0) -> str:
    """Write `value` in the first unit of which it is at least `least` times, or in the last one."""
    size, unit = next((one for one in units if float(f"{value:.1e}") >= least * one[0]), units[-1])
    return f"{two_digits(value / size)}{unit}"
