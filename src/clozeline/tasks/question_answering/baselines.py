"""Baseline of question answering: the sentence nearest to the question by TF-IDF."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clozeline.tasks.question_answering.decoding import best_threshold
from clozeline.tasks.question_answering.questions import Question
from clozeline.tasks.scores.squad import f1
from clozeline.tasks.tfidf import tfidf_vectorizer

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def nearest_sentences(validation: Sequence[Question], test: Sequence[Question]) -> list[str]:
    """Return for each question of `test` the nearest sentence of its context by TF-IDF cosine.

    The answer is an empty string if the cosine is below a threshold chosen on `validation`.
    """
    vectorizer = tfidf_vectorizer()
    vectorizer.fit([question.context for question in (*validation, *test)])
    known = [_nearest(question, vectorizer) for question in validation]
    gains = [f1(it.texts, "") - f1(it.texts, answer) for it, (answer, _) in zip(validation, known, strict=True)]
    bound = -best_threshold(np.array([-likeness for _, likeness in known]), np.array(gains))
    found = [_nearest(question, vectorizer) for question in test]
    return [answer if likeness >= bound else "" for answer, likeness in found]


def _nearest(question: Question, vectorizer: "TfidfVectorizer") -> tuple[str, float]:
    sentences = _SENTENCE_END.split(question.context.strip())
    likeness = (vectorizer.transform(sentences) @ vectorizer.transform([question.question]).T).toarray().ravel()
    best = int(likeness.argmax())
    return sentences[best], float(likeness[best])
