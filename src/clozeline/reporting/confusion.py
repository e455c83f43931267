"""Confusion between classes: a matrix that stays readable with twenty classes, and a list of the largest errors.

Shapes: C classes.
"""

from collections import Counter
from collections.abc import Sequence

from markupsafe import Markup

from clozeline.reporting.numbers import count, share
from clozeline.reporting.templates import html, joined

MOST_CLASSES = 24
_OTHER = "(others)"
_MOST_ERRORS = 12


def matrix(task: str, pairs: Sequence[tuple[str, str]]) -> Markup:
    """Return the error list and the matrix of (actual, predicted) pairs, folded."""
    return html("folded", summary=_summary(pairs), body=joined(_errors(task, pairs), _matrix(task, pairs)))


def _errors(task: str, pairs: Sequence[tuple[str, str]]) -> Markup | None:
    sizes = Counter(actual for actual, _ in pairs)
    errors = Counter(pair for pair in pairs if pair[0] != pair[1])
    worst = sorted(errors.items(), key=lambda item: (-item[1], item[0]))[:_MOST_ERRORS]
    rows = [(actual, predicted, count(times), share(times / sizes[actual])) for (actual, predicted), times in worst]
    columns = ("actual", "predicted", ">times", ">share of the class")
    caption = f"{task}: the most frequent mistakes"
    return html("table", caption=caption, columns=columns, rows=rows) if rows else None


def _summary(pairs: Sequence[tuple[str, str]]) -> str:
    right = sum(actual == predicted for actual, predicted in pairs)
    return f"Mistakes and confusion matrix: {count(right)} of {count(len(pairs))} right"


def _matrix(task: str, pairs: Sequence[tuple[str, str]]) -> Markup:
    labels, cells = _rare_labels_merged(pairs)
    sizes = Counter[str]()
    for (actual, _), times in cells.items():
        sizes[actual] += times
    return html("confusion", task=task, labels=labels, cells=cells, sizes=sizes)


def _rare_labels_merged(pairs: Sequence[tuple[str, str]]) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Return the sorted labels and the count of each pair; beyond `MOST_CLASSES` the rarest labels are merged."""
    sizes = Counter(label for pair in pairs for label in pair)
    if len(sizes) <= MOST_CLASSES:
        return sorted(sizes), Counter(pairs)
    frequent = sorted(sizes, key=lambda label: (-sizes[label], label))[: MOST_CLASSES - 1]
    names = {label: label if label in frequent else _OTHER for label in sizes}
    return [*sorted(frequent), _OTHER], Counter((names[actual], names[predicted]) for actual, predicted in pairs)
