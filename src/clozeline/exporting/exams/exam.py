"""Exam of a model: tokenized texts, a function that reads the answers, and the right answers.

Shapes: A answers, T texts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.export.evidence import Measured
from clozeline.errors import DataError
from clozeline.exporting.answers import UNKNOWN, Answers, answers, likeliest
from clozeline.exporting.ratios import Counts, per_text
from clozeline.exporting.sample import Sample
from clozeline.inference.batching import Batch
from clozeline.inference.model_kinds import kind_of, resolved
from clozeline.inference.open_model import OpenModel
from clozeline.inference.question import Rows
from clozeline.inference.tokenization import TokenizedText

Places = npt.NDArray[np.int64]
Holds = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Exam:
    """Exam whose answers are either right or wrong."""

    texts: Sequence[TokenizedText]
    text_A: Places
    """Text of each answer."""
    true_A: Places
    """Label of each answer; UNKNOWN without a label."""
    metric: str
    """Name of the metric. If it ends with "agreement", fp32's answers serve as the reference."""

    @property
    def num_texts(self) -> int:
        """Number of texts, pairs or questions; each may have several answers."""
        return len(np.unique(self.text_A))

    def num_items(self, fp32: Answers) -> int:
        """Return the number of items in the metric: labelled answers, or all if fp32 is the reference."""
        return int(self._is_counted.sum())

    @property
    def _is_counted(self) -> Holds:
        is_counted: Holds = (self.true_A != UNKNOWN) | self.is_agreement
        return is_counted

    @property
    def is_agreement(self) -> bool:
        """Whether fp32's answers serve as the reference, because there are no labels."""
        return self.metric.endswith("agreement")

    def answers(self, model: OpenModel, grouped: Iterable[Batch]) -> Answers:
        """Return the answers of `model` to the texts of the exam; `grouped` holds each of them once."""
        return Answers(answers(model, grouped, self.read, model.main_output))

    def read(self, position: int, rows: Rows) -> Places:
        """Return the answers for the text with the index `position`."""
        return likeliest(position, rows)

    def counts(self, given: Answers, fp32: Answers) -> Counts:
        """Return the metric of `given` as two sums over texts."""
        is_right = self._is_counted & (given.top1_A == (fp32.top1_A if self.is_agreement else self.true_A))
        return Counts(per_text(is_right, self.text_A), per_text(self._is_counted, self.text_A))

    def quality(self, model: OpenModel, given: Answers) -> Mapping[str, Measured]:
        """Return figures of `model`, whose answers are `given`, by name; none if its own stage has measured them."""
        return {}

    def matters(self, one: Answers, other: Answers) -> Holds:
        """Return which answers of two graphs are compared; by default all."""
        return np.ones(len(one.top1_A), dtype=np.bool_)


def exam_of(model: OpenModel, sample: Sample) -> Exam:
    """Return the exam for the task of `model`.

    Raises:
        DataError: the sample has no item, because no text has a token.
    """
    exam: Exam = resolved(kind_of(model.manifest.task).exam)(model, sample)
    return exam


def different(texts: Sequence[TokenizedText], sample: Sample) -> list[int]:
    """Return the indices of texts whose tokens differ from those of all texts before: duplicates prove nothing new.

    All indices if the sample keeps copies.
    """
    if sample.keeps_copies:
        return list(range(len(texts)))
    first: dict[tuple[bytes, bytes], int] = {}
    for place, text in enumerate(texts):
        types = b"" if text.types_L is None else text.types_L.tobytes()
        first.setdefault((text.ids_L.tobytes(), types), place)
    return list(first.values())


def either(one: Holds, other: Holds) -> Holds:
    """Combine two masks by OR; if no position is true in either, return all positions."""
    is_said = one | other
    return is_said if is_said.any() else ~is_said


def nothing_to_ask(given: str) -> DataError:
    """Return the error for a sample without items."""
    return DataError(
        f"INT8 and fp32 cannot be compared on {given}", do="check that tokenizer and validation text belong together"
    )
