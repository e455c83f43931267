"""Metrics of predicted label sets, and the decision threshold of probabilities.

Shapes: T texts, C classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from clozeline.tasks.classification.scores import ClassScore, ratio

LabelSets = npt.NDArray[np.bool_]
Figure = Callable[[LabelSets, LabelSets], float]
_NUM_CANDIDATES = 400
_USUAL_THRESHOLD = 0.5


@dataclass(frozen=True)
class SetScores:
    """Metrics of label sets. A ratio with denominator 0 is 0, as in scikit-learn with `zero_division=0`."""

    micro_f1: float
    macro_f1: float
    exact_match: float
    """Share of texts whose label set is exactly right."""
    per_class: dict[str, ClassScore]


def score_sets(actual_TC: LabelSets, predicted_TC: LabelSets, labels: Sequence[str]) -> SetScores:
    hits_C = (actual_TC & predicted_TC).sum(axis=0)
    actual_C, predicted_C = actual_TC.sum(axis=0), predicted_TC.sum(axis=0)
    precision_C, recall_C = ratio(hits_C, predicted_C), ratio(hits_C, actual_C)
    f1_C = ratio(2 * hits_C, actual_C + predicted_C)
    columns = (array.tolist() for array in (precision_C, recall_C, f1_C, actual_C))
    return SetScores(
        micro_f1=micro_f1(actual_TC, predicted_TC),
        macro_f1=macro_f1(actual_TC, predicted_TC),
        exact_match=float((actual_TC == predicted_TC).all(axis=1).mean()),
        per_class={label: ClassScore(*values) for label, *values in zip(labels, *columns, strict=True)},
    )


def whole(predicted_TC: LabelSets, actual_TC: LabelSets) -> LabelSets:
    """Return `predicted_TC`, padded with empty columns to the labels of `actual_TC`."""
    return np.pad(predicted_TC, ((0, 0), (0, actual_TC.shape[1] - predicted_TC.shape[1])))


def micro_f1(actual_TC: LabelSets, predicted_TC: LabelSets) -> float:
    """Return F1 over all labels of all texts together."""
    whole = actual_TC.sum() + predicted_TC.sum()
    return float(2 * (actual_TC & predicted_TC).sum() / whole) if whole else 0.0


def macro_f1(actual_TC: LabelSets, predicted_TC: LabelSets) -> float:
    """Return the mean F1 over all labels, including labels without a text here."""
    hits_C = (actual_TC & predicted_TC).sum(axis=0)
    return float(ratio(2 * hits_C, actual_TC.sum(axis=0) + predicted_TC.sum(axis=0)).mean())


FIGURES: Mapping[str, Figure] = MappingProxyType({"micro_f1": micro_f1, "macro_f1": macro_f1})
"""Metrics keyed by `metric` in params.yaml."""


def best_threshold(actual_TC: LabelSets, share_TC: npt.NDArray[np.float64], figure: Figure) -> float:
    """Return the probability threshold that maximizes `figure`; ties go to the threshold nearest to 0.5.

    Candidates are 0.5 and midpoints between quantiles of the probabilities.
    """
    shares = np.unique(np.quantile(share_TC, np.linspace(0, 1, _NUM_CANDIDATES + 1)))
    candidates = [_USUAL_THRESHOLD, *((shares[1:] + shares[:-1]) / 2).tolist()]
    chosen: float = max(
        candidates,
        key=lambda threshold: (figure(actual_TC, share_TC > threshold), -abs(threshold - _USUAL_THRESHOLD)),
    )
    return chosen
