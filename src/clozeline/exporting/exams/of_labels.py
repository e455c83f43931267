"""Exams of classifiers: the label of a text, each of several labels, or which of two texts has the higher score.

Shapes: A answers, C labels, T texts.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from clozeline.exporting.answers import UNKNOWN, Answers
from clozeline.exporting.exams.exam import Exam, Holds, Places, different, either
from clozeline.exporting.ratios import Counts, per_text
from clozeline.exporting.sample import Sample
from clozeline.inference.batching import Batch
from clozeline.inference.classifier import Classifier
from clozeline.inference.open_model import OpenModel
from clozeline.inference.question import Rows
from clozeline.inference.tokenization import Given, TokenizedText


@dataclass(frozen=True, kw_only=True)
class LabelSetExam(Exam):
    """Exam of models that give several labels to a text. An answer is 1 or 0 for each label of each text."""

    least_logit: float
    """Logit above which a label is given."""

    def num_items(self, fp32: Answers) -> int:
        """Return the number of true labels; labels that a text does not have are not counted."""
        return int(self._right(fp32).sum())

    def read(self, position: int, rows: Rows) -> Places:
        return (rows > self.least_logit).astype(np.int64)

    def counts(self, given: Answers, fp32: Answers) -> Counts:
        """Return the sums of the micro-averaged F1."""
        is_given_A, is_right_A = given.top1_A == 1, self._right(fp32)
        right_T = per_text(is_given_A & is_right_A, self.text_A)
        return Counts(2 * right_T, per_text(is_given_A, self.text_A) + per_text(is_right_A, self.text_A))

    def matters(self, one: Answers, other: Answers) -> Holds:
        """Return the labels that at least one graph gives; on most labels both agree trivially."""
        return either(one.top1_A == 1, other.top1_A == 1)

    def _right(self, fp32: Answers) -> Holds:
        is_right_A: Holds = (fp32.top1_A if self.is_agreement else self.true_A) == 1
        return is_right_A


class OrderExam(Exam):
    """Exam of models with one score. An answer is whether a text has a higher score than the text before it."""

    def answers(self, model: OpenModel, grouped: Iterable[Batch]) -> Answers:
        given = super().answers(model, grouped)
        return Answers((given.top1_A > np.roll(given.top1_A, 1)).astype(np.int64), None)

    def read(self, position: int, rows: Rows) -> Places:
        """Return integers that sort like the scores."""
        bits = rows.astype(np.float32).view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def labels_exam(model: Classifier, sample: Sample) -> Exam:
    """Return the exam of a classifier, with the labels of the held-out items or otherwise of the sample."""
    manifest = model.manifest
    asked, labels_T = _items(model, sample)
    every = model.tokenize(asked, truncate=True)
    places = different(every, sample)
    read, labels_T = [every[place] for place in places], [labels_T[place] for place in places]
    if len(manifest.labels) == 1:
        return _order(read, [sample.held_out[place].score for place in places] if sample.held_out else [])
    if manifest.label_scores == "sigmoid":
        # A column holds one label of a text, not all its labels.
        known_T = labels_T if sample.held_out else [()] * len(read)
        threshold = 0.5 if manifest.decision_threshold is None else manifest.decision_threshold
        return _label_sets(manifest.labels, threshold, read, known_T)
    return _one_label(manifest.labels, read, labels_T)


def _order(read: Sequence[TokenizedText], scores: Sequence[float | None]) -> Exam:
    """Return the exam of a model with one score, with the right scores of the texts if all are known."""
    number_T = np.arange(len(read))
    known = [score for score in scores if score is not None]
    if len(known) < len(read) or len(set(known)) < 2:
        return OrderExam(texts=read, text_A=number_T, true_A=np.full_like(number_T, UNKNOWN), metric="order agreement")
    score_T = np.array(known)
    before_T = np.roll(score_T, 1)
    true_A = np.where(score_T == before_T, UNKNOWN, score_T > before_T)
    return OrderExam(texts=read, text_A=number_T, true_A=true_A, metric="order accuracy")


def _items(model: Classifier, sample: Sample) -> tuple[list[Given], list[Sequence[str]]]:
    """Return the input of each item and its labels; empty if unknown."""
    if sample.held_out:
        pairs = [item.text if item.second is None else (item.text, item.second) for item in sample.held_out]
        return list(pairs), [item.right for item in sample.held_out]
    given: list[Given] = [_halved(text) for text in sample.texts] if model.manifest.reads_pairs else [*sample.texts]
    return given, [[] if label is None else [label] for label in sample.labels]


def _halved(text: str) -> tuple[str, str]:
    """Return the two halves of a text as a pair, for a sample without pairs."""
    words = text.split()
    middle = len(words) // 2
    return " ".join(words[:middle]) or text, " ".join(words[middle:]) or text


def _one_label(labels: Sequence[str], read: Sequence[TokenizedText], labels_T: Sequence[Sequence[str]]) -> Exam:
    places = {label: place for place, label in enumerate(labels)}
    true_T = np.array([places.get(one[0], UNKNOWN) if one else UNKNOWN for one in labels_T], dtype=np.int64)
    is_labelled = 2 * int((true_T != UNKNOWN).sum()) >= len(true_T)
    metric = "accuracy" if is_labelled else "label agreement"
    return Exam(texts=read, text_A=np.arange(len(read)), true_A=true_T, metric=metric)


def _label_sets(
    labels: Sequence[str], threshold: float, read: Sequence[TokenizedText], labels_T: Sequence[Sequence[str]]
) -> Exam:
    true_A = np.array([label in of_text for of_text in labels_T for label in labels], dtype=np.int64)
    return LabelSetExam(
        texts=read,
        text_A=np.repeat(np.arange(len(read)), len(labels)),
        true_A=true_A,
        metric="micro F1" if true_A.any() else "label agreement",
        least_logit=math.log(threshold / (1 - threshold)) if 0 < threshold < 1 else math.inf * (threshold - 0.5),
    )
