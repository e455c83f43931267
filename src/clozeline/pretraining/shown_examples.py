"""Example predictions, logged during training."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer

from clozeline.language_modelling import language_model
from clozeline.language_modelling.batches import Split
from clozeline.language_modelling.language_model import LanguageModel
from clozeline.pretraining.questions import Examiner, Question
from clozeline.tokens.spelling import Spelling
from clozeline.training.callbacks import Callback
from clozeline.training.curves import Look

_LOG = logging.getLogger(__name__)
NUM_EXAMPLES = 3
"""Predictions that are logged at each validation pass."""


@dataclass(frozen=True)
class ShownExamples(Callback):
    """Logs the model's predictions for the same few held-out sentences at each validation pass."""

    model: LanguageModel
    examiner: Examiner
    questions: tuple[Question, ...]

    @classmethod
    def of(cls, model: LanguageModel, validation: Split, tokenizer: Path, num_examples: int) -> Self:
        """Choose sentences spread over the validation split."""
        reader = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        examiner = Examiner(validation, reader, Spelling.open(tokenizer), language_model.head_of(model))
        return cls(model, examiner, tuple(examiner.questions(num_examples)))

    def on_look(self, look: Look) -> None:
        for question in self.questions:
            (guess, probability), *_ = self.examiner.ask(self.model, question).guesses
            _LOG.info("  %s → %r (%.0f %%), right: %r", question.text, guess, 100 * probability, question.truth)
