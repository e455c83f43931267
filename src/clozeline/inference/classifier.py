"""A sequence classifier, answering: labels of a text with their probabilities.

C classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clozeline.inference.open_model import OpenModel
from clozeline.inference.question import Question, Rows
from clozeline.inference.scores import ScoreFunction, check_top_k, scored
from clozeline.inference.tokenization import TokenizedText


@dataclass(frozen=True, slots=True)
class LabelScore:
    """One label of a text; the fields are those of Hugging Face's text-classification task."""

    label: str
    score: float
    """Probability, 0-1, unless another function than softmax was asked for."""


class Classifier(OpenModel):
    """Puts one label on each text."""

    def classify(self, texts: Sequence[str], *, top_k: int = 1, truncate: bool = False) -> list[list[LabelScore]]:
        """For each text, the `top_k` likeliest labels (all, if there are fewer), best first.

        Raises:
            TextTooLongError: a text is longer than `manifest.max_length` tokens and `truncate` is not set.
            DataError: `top_k` is below 1.
        """
        return self.answers(self.classifying(texts, top_k=top_k, truncate=truncate))

    def classifying(
        self, texts: Sequence[str], *, top_k: int = 1, truncate: bool = False, function: ScoreFunction = "softmax"
    ) -> Question[list[LabelScore]]:
        """As `classify`, to be run elsewhere, with the scores that `function` gives; raises the same."""
        check_top_k(top_k)

        def read(position: int, logits_C: Rows) -> list[LabelScore]:
            best = scored(logits_C, top_k, function)
            return [LabelScore(self.manifest.labels[place], score) for place, score in best]

        return Question(self.tokenize(texts, truncate=truncate), "logits", read)

    def logits(self, texts: Sequence[TokenizedText]) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """`logits_C` of each text beside its position in `texts`; shorter texts come first."""
        for batch, logits_BC in self.run(texts, "logits"):
            yield from zip(batch.positions, logits_BC, strict=True)
