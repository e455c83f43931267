"""What a fine-tuned encoder has to be better than: the largest class, and counting words.

Shapes: T texts, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from clozeline.tasks.classification.scores import Classes

_INVERSE_REGULARIZATIONS = (1.0, 10.0, 100.0)


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and the classes they belong to."""

    texts: Sequence[str]
    class_T: Classes


def largest_class(train: LabelledTexts, num_test: int) -> Classes:
    """The class of most training texts, for every test text."""
    return np.full(num_test, np.bincount(train.class_T).argmax())


def tfidf_logistic_regression(train: LabelledTexts, validation: LabelledTexts, test: Sequence[str]) -> Classes:
    """TF-IDF of words, one logistic regression for each class; its regularization is chosen on `validation`.

    As strong as this simple method gets without work (pairs of words, one multinomial model: no better here, and
    forty times slower): a baseline left weak on purpose would prove nothing.
    """
    vectorizer = TfidfVectorizer(min_df=2, sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    train_TF = vectorizer.fit_transform(train.texts)
    validation_TF = vectorizer.transform(validation.texts)
    fitted = [
        OneVsRestClassifier(LogisticRegression(C=strength, solver="liblinear")).fit(train_TF, train.class_T)
        for strength in _INVERSE_REGULARIZATIONS
    ]
    best = max(fitted, key=lambda model: float(model.score(validation_TF, validation.class_T)))
    predicted_T: Classes = best.predict(vectorizer.transform(test))
    return predicted_T
