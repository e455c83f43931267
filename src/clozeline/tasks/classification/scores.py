"""How good predicted classes are.

Shapes: T texts, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clozeline.tasks.intervals import wilson_interval

Classes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassScore:
    """Of one class; a ratio without a denominator is 0, as in scikit-learn with `zero_division=0`."""

    precision: float
    recall: float
    f1: float
    num_texts: int


@dataclass(frozen=True)
class Scores:
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    """Ends of a 95 % interval for the accuracy on other texts like these."""
    macro_f1: float
    """Mean over the classes that occur among the actual or the predicted ones."""
    per_class: dict[str, ClassScore]


def score(actual_T: Classes, predicted_T: Classes, labels: Sequence[str]) -> Scores:
    """Compare predicted with actual classes, both as places in `labels`."""
    num_classes = len(labels)
    confusion_CC = np.bincount(actual_T * num_classes + predicted_T, minlength=num_classes**2)
    confusion_CC = confusion_CC.reshape(num_classes, num_classes)
    hits_C, actual_C, predicted_C = np.diag(confusion_CC), confusion_CC.sum(axis=1), confusion_CC.sum(axis=0)
    precision_C, recall_C = _ratio(hits_C, predicted_C), _ratio(hits_C, actual_C)
    f1_C = _ratio(2 * hits_C, actual_C + predicted_C)
    low, high = wilson_interval(int(hits_C.sum()), len(actual_T))
    columns = (array.tolist() for array in (precision_C, recall_C, f1_C, actual_C))
    return Scores(
        accuracy=float(hits_C.sum() / len(actual_T)),
        accuracy_low=low,
        accuracy_high=high,
        macro_f1=float(f1_C[(actual_C > 0) | (predicted_C > 0)].mean()),
        per_class={label: ClassScore(*values) for label, *values in zip(labels, *columns, strict=True)},
    )


def _ratio(part_C: npt.NDArray[np.int64], whole_C: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.divide(part_C, whole_C, out=np.zeros(len(whole_C)), where=whole_C > 0)
