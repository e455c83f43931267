"""A sequence classifier, answering: labels of a text, or of a pair of texts, with their scores.

C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from clozeline.artifacts.manifest import ScoreFunction
from clozeline.inference.errors import NotAPairError
from clozeline.inference.open_model import OpenModel
from clozeline.inference.question import AnyQuestion, Question, Rows
from clozeline.inference.scores import check_top_k, scored
from clozeline.inference.tokenization import Given


@dataclass(frozen=True, slots=True)
class LabelScore:
    """One label of a text; the fields are those of Hugging Face's text-classification task."""

    label: str
    score: float
    """Probability, 0-1: among all labels, or of a model of several labels for each text that it has this one."""


_RELEVANT = ("relevant", "entailment", "equivalent", "duplicate", "paraphrase", "similar", "yes", "true", "1")
"""Labels of pairs that say: the second text goes with the first. Those of GLUE's presets are among them."""


class Classifier(OpenModel):
    """Puts labels on each text, or on each pair of texts."""

    @property
    def relevant_label(self) -> str | None:
        """Of a model of pairs: the label that says that they go together, if one tells so; of one score, its own."""
        labels = self.manifest.labels
        if not self.manifest.reads_pairs or len(labels) == 1:
            return labels[0] if self.manifest.reads_pairs else None
        return next((label for label in labels if label.lower() in _RELEVANT), None)

    @property
    def relevance_function(self) -> ScoreFunction:
        """From logits to how relevant a text is, 0-1: as it was trained, or of a regression's score the sigmoid."""
        function = self.manifest.label_scores
        return "sigmoid" if function == "none" else function

    def classify(self, texts: Sequence[Given], *, top_k: int = 1, truncate: bool = False) -> list[list[LabelScore]]:
        """For each text, the `top_k` likeliest labels (all, if there are fewer), best first.

        Raises:
            TextTooLongError: a text is longer than `manifest.max_length` tokens and `truncate` is not set.
            NotAPairError: a text stands alone, and the model was trained on pairs.
            DataError: `top_k` is below 1.
        """
        return self.answers(self.classifying(texts, top_k=top_k, truncate=truncate))

    def classifying(
        self,
        texts: Sequence[Given],
        *,
        top_k: int = 1,
        truncate: bool = False,
        function: ScoreFunction | None = None,
    ) -> Question[list[LabelScore]]:
        """As `classify`, to be run elsewhere, with the scores that `function` gives (None: those that the model was
        trained with); raises the same.
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


def _check_pairs(given: Sequence[Given]) -> None:
    """To a text alone the model would give labels as sure as any, and they would mean nothing."""
    for number, one in enumerate(given):
        if isinstance(one, str):
            raise NotAPairError(
                "stands alone, and the model reads two texts together",
                number=number,
                given=repr(one[:60]),
                expected="a pair of texts, for the model was trained on pairs",
                do='give its second text with it: {"text": "…", "text_pair": "…"}, to /predict ["…", "…"], '
                'in Python ("…", "…")',
            )
