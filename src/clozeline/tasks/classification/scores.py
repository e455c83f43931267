"""Metrics of classification, and its baselines: the largest class, and logistic regression on TF-IDF features.

Shapes: T texts, F features, C classes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from clozeline.records.finetune.statistics import wilson_interval

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer


Classes = npt.NDArray[np.int64]
Figure = Callable[[Classes, Classes, int], float]
LabelSets = npt.NDArray[np.bool_]
SetFigure = Callable[[LabelSets, LabelSets], float]
_NUM_CANDIDATES = 400
_USUAL_THRESHOLD = 0.5
_INVERSE_REGULARIZATIONS = (1.0, 10.0, 100.0)
Shares = npt.NDArray[np.float64]
# Label → its figures.
PerClass = dict[str, dict[str, float]]


def score(actual_T: Classes, predicted_T: Classes, num_classes: int) -> dict[str, float]:
    """Return the figures of predicted classes, with the ends of the 95 % interval of the accuracy."""
    low, high = wilson_interval(int((actual_T == predicted_T).sum()), len(actual_T))
    figures = {name: figure(actual_T, predicted_T, num_classes) for name, figure in FIGURES.items()}
    return {"accuracy": figures.pop("accuracy"), "accuracy_low": low, "accuracy_high": high, **figures}


def score_each(actual_T: Classes, predicted_T: Classes, labels: Sequence[str]) -> PerClass:
    """Return the figures of each class; both classes are given as indices of `labels`."""
    return _each(*_margins(actual_T, predicted_T, len(labels)), labels)


def _each(hits_C: Classes, actual_C: Classes, predicted_C: Classes, labels: Sequence[str]) -> PerClass:
    """Return the figures of each class. A ratio with denominator 0 is 0, as in scikit-learn with `zero_division=0`."""
    precision_C, recall_C = ratio(hits_C, predicted_C), ratio(hits_C, actual_C)
    f1_C = ratio(2 * hits_C, actual_C + predicted_C)
    columns = zip(labels, *(array.tolist() for array in (precision_C, recall_C, f1_C, actual_C)), strict=True)
    return {
        label: {"precision": precision, "recall": recall, "f1": f1, "num_texts": num_texts}
        for label, precision, recall, f1, num_texts in columns
    }


def accuracy(actual_T: Classes, predicted_T: Classes, num_classes: int) -> float:
    return float((actual_T == predicted_T).sum() / len(actual_T))


def macro_f1(actual_T: Classes, predicted_T: Classes, num_classes: int) -> float:
    """Return the mean F1 over the classes that occur among the actual or the predicted ones."""
    hits_C, actual_C, predicted_C = _margins(actual_T, predicted_T, num_classes)
    f1_C = ratio(2 * hits_C, actual_C + predicted_C)
    return float(f1_C[(actual_C > 0) | (predicted_C > 0)].mean())


def matthews(actual_T: Classes, predicted_T: Classes, num_classes: int) -> float:
    """Return the correlation of actual and predicted classes (Gorodkin 2004); 0 if either is constant."""
    hits_C, actual_C, predicted_C = (each.astype(np.float64) for each in _margins(actual_T, predicted_T, num_classes))
    num_texts = float(len(actual_T))
    together = num_texts * hits_C.sum() - actual_C @ predicted_C
    alone = (num_texts**2 - predicted_C @ predicted_C) * (num_texts**2 - actual_C @ actual_C)
    return float(together / math.sqrt(alone)) if alone > 0 else 0.0


def f1_of(class_: int) -> Figure:
    """Return the metric F1 of a single class, as GLUE uses for MRPC and QQP."""

    def f1(actual_T: Classes, predicted_T: Classes, num_classes: int) -> float:
        hits_C, actual_C, predicted_C = _margins(actual_T, predicted_T, num_classes)
        return float(ratio(2 * hits_C, actual_C + predicted_C)[class_])

    return f1


# Metrics keyed by `metric` in params.yaml, except `f1`, which `f1_of` makes for one class.
FIGURES: Mapping[str, Figure] = {"accuracy": accuracy, "macro_f1": macro_f1, "matthews": matthews}


def _margins(actual_T: Classes, predicted_T: Classes, num_classes: int) -> tuple[Classes, Classes, Classes]:
    """Return for each class the number of texts predicted correctly, of actual texts, and of predicted texts."""
    hits_C = np.bincount(actual_T[actual_T == predicted_T], minlength=num_classes)
    return hits_C, np.bincount(actual_T, minlength=num_classes), np.bincount(predicted_T, minlength=num_classes)


def ratio(part_C: npt.NDArray[np.int64], whole_C: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.divide(part_C, whole_C, out=np.zeros(len(whole_C)), where=whole_C > 0)


def score_sets(actual_TC: LabelSets, predicted_TC: LabelSets) -> dict[str, float]:
    """Return the figures of label sets; `exact_match` is the share of texts whose set is exactly right."""
    return {
        "micro_f1": micro_f1(actual_TC, predicted_TC),
        "macro_f1": macro_f1_of_sets(actual_TC, predicted_TC),
        "exact_match": float((actual_TC == predicted_TC).all(axis=1).mean()),
    }


def score_each_label(actual_TC: LabelSets, predicted_TC: LabelSets, labels: Sequence[str]) -> PerClass:
    hits_TC = actual_TC & predicted_TC
    return _each(hits_TC.sum(axis=0), actual_TC.sum(axis=0), predicted_TC.sum(axis=0), labels)


def whole(predicted_TC: LabelSets, actual_TC: LabelSets) -> LabelSets:
    """Return `predicted_TC`, padded with empty columns to the labels of `actual_TC`."""
    return np.pad(predicted_TC, ((0, 0), (0, actual_TC.shape[1] - predicted_TC.shape[1])))


def micro_f1(actual_TC: LabelSets, predicted_TC: LabelSets) -> float:
    """Return F1 over all labels of all texts together."""
    whole = actual_TC.sum() + predicted_TC.sum()
    return float(2 * (actual_TC & predicted_TC).sum() / whole) if whole else 0.0


def macro_f1_of_sets(actual_TC: LabelSets, predicted_TC: LabelSets) -> float:
    """Return the mean F1 over all labels, including labels without a text here."""
    hits_C = (actual_TC & predicted_TC).sum(axis=0)
    return float(ratio(2 * hits_C, actual_TC.sum(axis=0) + predicted_TC.sum(axis=0)).mean())


# Metrics keyed by `metric` in params.yaml.
SET_FIGURES: Mapping[str, SetFigure] = {"micro_f1": micro_f1, "macro_f1": macro_f1_of_sets}


def best_threshold(actual_TC: LabelSets, share_TC: npt.NDArray[np.float64], figure: SetFigure) -> float:
    """Return the probability threshold that maximizes `figure`; ties go to the threshold nearest to 0.5.

    Candidates are 0.5 and midpoints between quantiles of the probabilities.
    """
    shares = np.unique(np.quantile(share_TC, np.linspace(0, 1, _NUM_CANDIDATES + 1)))
    candidates = [_USUAL_THRESHOLD, *((shares[1:] + shares[:-1]) / 2).tolist()]
    chosen: float = max(
        candidates, key=lambda threshold: (figure(actual_TC, share_TC > threshold), -abs(threshold - _USUAL_THRESHOLD))
    )
    return chosen


def tfidf_vectorizer(*, min_texts: int = 1) -> "TfidfVectorizer":
    """Return a vectorizer of words that occur in at least `min_texts` texts, with sublinear term frequency."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes two seconds; few stages need it

    return TfidfVectorizer(min_df=min_texts, sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")


@dataclass(frozen=True)
class TextsOrPairs:
    """Texts or pairs of texts."""

    first: Sequence[str]
    second: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.first)

    @property
    def whole(self) -> list[str]:
        """Texts, with both texts of a pair joined by a space."""
        return (
            list(self.first) if self.second is None else list(map(" ".join, zip(self.first, self.second, strict=True)))
        )


# Texts and their classes.
LabelledTexts = tuple[TextsOrPairs, Classes]


def largest_class(class_T: Classes, num_test: int) -> Classes:
    """Return the most frequent class of the training texts, for every test text."""
    return np.full(num_test, np.bincount(class_T).argmax())


def tfidf_logistic_regression(train: LabelledTexts, validation: LabelledTexts, test: TextsOrPairs) -> Classes:
    """Return the classes that one logistic regression per class predicts from TF-IDF of words.

    `validation` selects the regularization. Word pairs and one multinomial model were no better here, and forty times
    slower. A deliberately weak baseline would prove nothing.
    """
    from sklearn.multiclass import OneVsRestClassifier

    features = WordCounts(train[0])
    train_TF, validation_TF = features.of(train[0]), features.of(validation[0])
    fitted = [
        OneVsRestClassifier(_logistic_regression(strength)).fit(train_TF, train[1])
        for strength in _INVERSE_REGULARIZATIONS
    ]
    best = max(fitted, key=lambda model: float(model.score(validation_TF, validation[1])))
    predicted_T: Classes = best.predict(features.of(test))
    return predicted_T


def tfidf_label_shares(
    train: TextsOrPairs,
    is_true_TC: npt.NDArray[np.float32],
    figure: Callable[[Shares], float],
    others: Sequence[TextsOrPairs],
) -> list[Shares]:
    """Return the probability of each label for each text of `others`, by the same method for independent labels.

    Args:
        figure: score of the probabilities on the validation texts; selects the regularization.
        others: the validation texts first, then further texts.
    """
    features = WordCounts(train)
    train_TF, others_TF = features.of(train), [features.of(texts) for texts in others]
    candidates = []
    for strength in _INVERSE_REGULARIZATIONS:
        columns = [_column(train_TF, column_T, others_TF, strength) for column_T in is_true_TC.T]
        candidates.append([np.stack(column, axis=1) for column in zip(*columns, strict=True)])
    return max(candidates, key=lambda shares: figure(shares[0]))


def _column(train_TF: Any, true_T: npt.NDArray[np.float32], others_TF: Sequence[Any], strength: float) -> list[Shares]:
    if true_T.min() == true_T.max():
        return [np.full(other_TF.shape[0], float(true_T[0])) for other_TF in others_TF]
    model = _logistic_regression(strength).fit(train_TF, true_T)
    return [model.predict_proba(other_TF)[:, 1] for other_TF in others_TF]


def _logistic_regression(inverse_regularization: float) -> Any:
    from sklearn.linear_model import LogisticRegression  # takes two seconds to import

    return LogisticRegression(C=inverse_regularization, solver="liblinear")


class WordCounts:
    """TF-IDF features of texts. A pair has those of the first text, those of the second, and their products."""

    def __init__(self, train: TextsOrPairs) -> None:
        self._vectorizer = tfidf_vectorizer(min_texts=2)
        self._vectorizer.fit([*train.first, *(train.second or ())])

    def of(self, texts: TextsOrPairs) -> Any:
        """Return the sparse matrix `features_TF`."""
        first_TF = self._vectorizer.transform(texts.first)
        if texts.second is None:
            return first_TF
        from scipy import sparse

        second_TF = self._vectorizer.transform(texts.second)
        return sparse.hstack([first_TF, second_TF, first_TF.multiply(second_TF)], format="csr")
