"""Answers of a package to labelled items, counted item by item.

Shapes: T items.
"""

import numpy as np

from clozeline.exporting.exams.exam import exam_of
from clozeline.exporting.ratios import Counts
from clozeline.exporting.sample import Sample
from clozeline.inference.open_model import OpenModel

_ACCURACY = "accuracy"


def counts_on(model: OpenModel, sample: Sample) -> tuple[str, Counts]:
    """Return the metric of the exam for this kind of model, and its counts by item.

    A label that the model does not know counts as missed, so that an older model with fewer labels is asked the same.

    Raises:
        DataError: no item has a token.
    """
    exam = exam_of(model, sample)
    answers = exam.answers(model, model.batches(exam.texts))
    counts = exam.counts(answers, answers)
    if exam.metric == _ACCURACY:
        counts = Counts(counts.part_T, np.ones(len(counts.part_T), dtype=np.int64))
    return exam.metric, counts
