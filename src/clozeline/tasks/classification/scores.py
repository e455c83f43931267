"""Metrics of predicted classes.

Shapes: T texts, C classes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from clozeline.tasks.intervals import wilson_interval

Classes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassScore:
    """Metrics of one class. A ratio with denominator 0 is 0, as in scikit-learn with `zero_division=0`."""

    precision: float
    recall: float
    f1: float
    num_texts: int


@dataclass(frozen=True)
class Scores:
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    """`accuracy_low` and `accuracy_high` are the ends of the 95 % interval over other texts of the same kind."""
    macro_f1: float
    """Mean F1 over the classes that occur among the actual or the predicted ones."""
    matthews: float
    """Correlation of actual and predicted classes (Gorodkin 2004); 0 if either is constant."""
    per_class: dict[str, ClassScore]


def score(actual_T: Classes, predicted_T: Classes, labels: Sequence[str]) -> Scores:
    """Compare predicted with actual classes, both given as indices of `labels`."""
    hits_C, actual_C, predicted_C = _margins(actual_T, predicted_T, len(labels))
    precision_C, recall_C = ratio(hits_C, predicted_C), ratio(hits_C, actual_C)
    f1_C = ratio(2 * hits_C, actual_C + predicted_C)
    low, high = wilson_interval(int(hits_C.sum()), len(actual_T))
    columns = (array.tolist() for array in (precision_C, recall_C, f1_C, actual_C))
    return Scores(
        accuracy=accuracy(actual_T, predicted_T, len(labels)),
        accuracy_low=low,
        accuracy_high=high,
        macro_f1=macro_f1(actual_T, predicted_T, len(labels)),
        matthews=matthews(actual_T, predicted_T, len(labels)),
        per_class={label: ClassScore(*values) for label, *values in zip(labels, *columns, strict=True)},
    )


def accuracy(actual_T: Classes, predicted_T: Classes, num_classes: int) -> float:
    return float((actual_T == predicted_T).sum() / len(actual_T))


def macro_f1(actual_T: Classes, predicted_T: Classes, num_classes: int) -> float:
    hits_C, actual_C, predicted_C = _margins(actual_T, predicted_T, num_classes)
    f1_C = ratio(2 * hits_C, actual_C + predicted_C)
    return float(f1_C[(actual_C > 0) | (predicted_C > 0)].mean())


def matthews(actual_T: Classes, predicted_T: Classes, num_classes: int) -> float:
    hits_C, actual_C, predicted_C = (
        counts.astype(np.float64) for counts in _margins(actual_T, predicted_T, num_classes)
    )
    num_texts = float(len(actual_T))
    together = num_texts * hits_C.sum() - actual_C @ predicted_C
    alone = (num_texts**2 - predicted_C @ predicted_C) * (num_texts**2 - actual_C @ actual_C)
    return float(together / math.sqrt(alone)) if alone > 0 else 0.0


def f1_of(class_: int) -> "Figure":
    """Return the metric F1 of a single class, as GLUE uses for MRPC and QQP."""

    def f1(actual_T: Classes, predicted_T: Classes, num_classes: int) -> float:
        hits_C, actual_C, predicted_C = _margins(actual_T, predicted_T, num_classes)
        return float(ratio(2 * hits_C, actual_C + predicted_C)[class_])

    return f1


Figure = Callable[[Classes, Classes, int], float]
FIGURES: Mapping[str, Figure] = MappingProxyType({"accuracy": accuracy, "macro_f1": macro_f1, "matthews": matthews})
"""Metrics keyed by `metric` in params.yaml, except `f1`, which `f1_of` makes for one class."""


def _margins(actual_T: Classes, predicted_T: Classes, num_classes: int) -> tuple[Classes, Classes, Classes]:
    """Return for each class the number of texts predicted correctly, of actual texts, and of predicted texts."""
    hits_C = np.bincount(actual_T[actual_T == predicted_T], minlength=num_classes)
    return hits_C, np.bincount(actual_T, minlength=num_classes), np.bincount(predicted_T, minlength=num_classes)


def ratio(part_C: npt.NDArray[np.int64], whole_C: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.divide(part_C, whole_C, out=np.zeros(len(whole_C)), where=whole_C > 0)
