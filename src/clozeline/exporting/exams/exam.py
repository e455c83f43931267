"""An exam: texts as a model reads them, how its answers are read, and which of them are right.

A answers, T texts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    """Of answers that are either right or wrong."""

    texts: Sequence[TokenizedText]
    text_A: Places
    """Which text each answer belongs to."""
    true_A: Places
    """UNKNOWN where it is not known."""
    metric: str
    """An agreement, if it ends so: with what fp32 says."""

    @property
    def num_texts(self) -> int:
        """Texts, pairs, questions, …: each may have several answers."""
        return len(np.unique(self.text_A))

    def num_items(self, fp32: Answers) -> int:
        """That the metric is of: what is known to be right, or what fp32 says."""
        return int(self._is_counted.sum())

    @property
    def _is_counted(self) -> Holds:
        is_counted: Holds = (self.true_A != UNKNOWN) | self.is_agreement
        return is_counted

    @property
    def is_agreement(self) -> bool:
        """Whether INT8 is held to what fp32 says, for nothing is known to be right."""
        return self.metric.endswith("agreement")

    def answers(self, model: OpenModel, grouped: Iterable[Batch]) -> Answers:
        """What `model` says to texts of the exam; `grouped` has each of them once."""
        return answers(model, grouped, self.read)

    def read(self, position: int, rows: Rows) -> Places:
        """The answers of the text at `position`."""
        return likeliest(position, rows)

    def counts(self, given: Answers, fp32: Answers) -> Counts:
        """The metric of `given`, as its two sums over texts."""
        is_right = self._is_counted & (given.top1_A == (fp32.top1_A if self.is_agreement else self.true_A))
        return Counts(per_text(is_right, self.text_A), per_text(self._is_counted, self.text_A))

    def matters(self, one: Answers, other: Answers) -> Holds:
        """Which answers of two graphs are compared: all, where an answer is one of many."""
        return np.ones(len(one.top1_A), dtype=np.bool_)


def exam_of(model: OpenModel, sample: Sample) -> Exam:
    """What `model` can be asked.

    Raises:
        DataError: nothing, for no text has a token.
    """
    exam: Exam = resolved(kind_of(model.manifest.task).exam)(model, sample)
    return exam


def different(texts: Sequence[TokenizedText]) -> list[int]:
    """Places of those that are not read as one before them: what a model reads twice it has shown once."""
    first: dict[tuple[bytes, bytes], int] = {}
    for place, text in enumerate(texts):
        types = b"" if text.types_L is None else text.types_L.tobytes()
        first.setdefault((text.ids_L.tobytes(), types), place)
    return list(first.values())


def either(one: Holds, other: Holds) -> Holds:
    """Where one of both says something; everywhere, if that is nowhere."""
    is_said = one | other
    return is_said if is_said.any() else ~is_said


def nothing_to_ask(given: str) -> DataError:
    """Of a sample that has no question."""
    return DataError(
        "INT8 and fp32 cannot be compared",
        given=given,
        expected="texts that the tokenizer knows words of",
        do="check that tokenizer and validation text belong together",
    )
