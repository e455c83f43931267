"""Baselines of classification: the largest class, and logistic regression on TF-IDF.

Shapes: T texts, F features, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clozeline.tasks.classification.scores import Classes
from clozeline.tasks.tfidf import tfidf_vectorizer

_INVERSE_REGULARIZATIONS = (1.0, 10.0, 100.0)
Shares = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Texts:
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


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and their classes."""

    texts: Texts
    class_T: Classes


def largest_class(class_T: Classes, num_test: int) -> Classes:
    """Return the most frequent class of the training texts, for every test text."""
    return np.full(num_test, np.bincount(class_T).argmax())


def tfidf_logistic_regression(train: LabelledTexts, validation: LabelledTexts, test: Texts) -> Classes:
    """Return the classes that one logistic regression per class predicts from TF-IDF of words.

    `validation` selects the regularization. Word pairs and one multinomial model were no better here, and forty times
    slower. A deliberately weak baseline would prove nothing.
    """
    from sklearn.multiclass import OneVsRestClassifier

    features = WordCounts(train.texts)
    train_TF, validation_TF = features.of(train.texts), features.of(validation.texts)
    fitted = [
        OneVsRestClassifier(_logistic_regression(strength)).fit(train_TF, train.class_T)
        for strength in _INVERSE_REGULARIZATIONS
    ]
    best = max(fitted, key=lambda model: float(model.score(validation_TF, validation.class_T)))
    predicted_T: Classes = best.predict(features.of(test))
    return predicted_T


def tfidf_label_shares(
    train: Texts, is_true_TC: npt.NDArray[np.float32], figure: Callable[[Shares], float], others: Sequence[Texts]
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


def _column(
    train_TF: Any, is_true_T: npt.NDArray[np.float32], others_TF: Sequence[Any], strength: float
) -> list[Shares]:
    if is_true_T.min() == is_true_T.max():
        return [np.full(other_TF.shape[0], float(is_true_T[0])) for other_TF in others_TF]
    model = _logistic_regression(strength).fit(train_TF, is_true_T)
    return [model.predict_proba(other_TF)[:, 1] for other_TF in others_TF]


def _logistic_regression(inverse_regularization: float) -> Any:
    from sklearn.linear_model import LogisticRegression  # takes two seconds to import

    return LogisticRegression(C=inverse_regularization, solver="liblinear")


class WordCounts:
    """TF-IDF features of texts. A pair has those of the first text, those of the second, and their products."""

    def __init__(self, train: Texts) -> None:
        self._vectorizer = tfidf_vectorizer(min_texts=2)
        self._vectorizer.fit([*train.first, *(train.second or ())])

    def of(self, texts: Texts) -> Any:
        """Return the sparse matrix `features_TF`."""
        first_TF = self._vectorizer.transform(texts.first)
        if texts.second is None:
            return first_TF
        from scipy import sparse

        second_TF = self._vectorizer.transform(texts.second)
        return sparse.hstack([first_TF, second_TF, first_TF.multiply(second_TF)], format="csr")
