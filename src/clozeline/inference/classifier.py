"""Classification: labels of a text or of a pair of texts, with their scores.

Shapes: C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from clozeline.inference.fields import UNDESCRIBED
from clozeline.inference.open_model import (
    AnyQuestion,
    Dialogue,
    OpenModel,
    Question,
    Records,
    Rows,
    alone,
    check_top_k,
    scored,
)
from clozeline.inference.tokenization import Given, NotAPairError
from clozeline.records.package import ScoreFunction

_RELEVANT = ("relevant", "entailment", "equivalent", "duplicate", "paraphrase", "similar", "yes", "true", "1")
"""Labels that mean that the second text of a pair goes with the first, including those of GLUE's presets."""

_SCORE = Field(
    description="Probability among all labels, or of this label alone if a text can have several; "
    "`function_to_apply` changes it."
)


@dataclass(frozen=True, slots=True)
class LabelScore:
    """One label of a text, with the fields of Hugging Face's text-classification task."""

    __pydantic_config__ = UNDESCRIBED

    label: str
    score: Annotated[float, _SCORE]
    """Score by the model's score function: a probability, 0-1, or the logit of a regression."""


class Classifier(OpenModel):
    """Classifies texts or pairs of texts."""

    @property
    def relevant_label(self) -> str | None:
        """Label of a pair model for texts that belong together, or its only label; None if it has no such label."""
        labels = self.manifest.labels
        if not self.manifest.reads_pairs or len(labels) == 1:
            return labels[0] if self.manifest.reads_pairs else None
        return next((label for label in labels if label.lower() in _RELEVANT), None)

    @property
    def relevance_function(self) -> ScoreFunction:
        """Function from logits to a relevance of 0-1: the one used in training, or sigmoid for a regression."""
        function = self.manifest.label_scores
        return "sigmoid" if function == "none" else function

    def classify(self, texts: Sequence[Given], *, top_k: int = 1, truncate: bool = False) -> list[list[LabelScore]]:
        """Return the `top_k` likeliest labels of each text (all if there are fewer), best first.

        Raises:
            TextTooLongError: a text is longer than `manifest.max_length` tokens and `truncate` is not set.
            NotAPairError: an item is a single text, and the model was trained on pairs.
            DataError: `top_k` is below 1.
        """
        return self.answers(self.classifying(texts, top_k=top_k, truncate=truncate))

    def classifying(
        self, texts: Sequence[Given], *, top_k: int = 1, truncate: bool = False, function: ScoreFunction | None = None
    ) -> Question[list[LabelScore]]:
        """Return the `Question` that `classify` would run. Raises the same errors as `classify`.

        `function` computes the scores; None: the function used in training.
        """
        check_top_k(top_k)
        if self.manifest.reads_pairs:
            _check_pairs(texts)
        to_scores = function or self.manifest.label_scores

        def read(position: int, logits_C: Rows) -> list[LabelScore]:
            best = scored(logits_C, top_k, to_scores)
            return [LabelScore(self.manifest.labels[place], score) for place, score in best]

        return Question(self.tokenize(texts, truncate=truncate), "logits", read)

    def usual(self, texts: Sequence[str]) -> AnyQuestion:
        given = [(text, text) for text in texts] if self.manifest.reads_pairs else texts
        return self.classifying(given, truncate=True)

    def recording(self, given: Sequence[Given], *, top_k: int, truncate: bool) -> Dialogue[Records]:
        labelled = yield from alone(lambda: self.classifying(given, top_k=top_k, truncate=truncate))
        return [{"labels": labels} for labels in labelled]


def _check_pairs(given: Sequence[Given]) -> None:
    """Refuse single texts: a pair model would give them confident but meaningless labels."""
    for number, one in enumerate(given):
        if isinstance(one, str):
            raise NotAPairError(
                "is a single text, but the model reads pairs",
                number=number,
                given=repr(one[:60]),
                expected="a pair of texts, because the model was trained on pairs",
                do='send both texts: {"text": "…", "text_pair": "…"}; to /predict ["…", "…"]; in Python ("…", "…")',
            )
