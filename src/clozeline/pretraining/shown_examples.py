"""Predictions to look at while a training runs."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from tokenizers import Tokenizer

from clozeline.artifacts.curves import Look
from clozeline.encoder import language_model
from clozeline.encoder.batches import Split
from clozeline.encoder.language_model import LanguageModel
from clozeline.encoder.objectives import OBJECTIVES, TargetBatch
from clozeline.training.callbacks import Callback

_LOG = logging.getLogger(__name__)
_NUM_CONTEXT_TOKENS = 6
_LEAST_CONTENT_TOKENS = 2 * _NUM_CONTEXT_TOKENS


@dataclass(frozen=True)
class ShownExamples(Callback):
    """Logs, at each look, what the model says of the same few tokens of held-out text."""

    model: LanguageModel
    tokenizer: Tokenizer
    batches: tuple[TargetBatch, ...]
    """A row each; its target in the middle is shown."""

    @classmethod
    def of(cls, model: LanguageModel, validation: Split, tokenizer: Path, num_examples: int) -> Self:
        """Rows spread over the validation part."""
        long = np.flatnonzero(validation.rows.length_R >= _LEAST_CONTENT_TOKENS)
        spread = np.linspace(0, len(long) - 1, min(num_examples, len(long))).astype(np.int64)
        judging = OBJECTIVES[language_model.objective_of(model)].judging
        batches = (judging(validation, validation.read(long[place : place + 1]), 0, 0, 7) for place in spread)
        asked = tuple(batch for batch in batches if len(batch.labels_T))
        return cls(model, Tokenizer.from_file(str(tokenizer / "tokenizer.json")), asked)

    @torch.no_grad()
    def on_look(self, look: Look) -> None:
        was_training = self.model.training
        self.model.eval()
        for batch in self.batches:
            _LOG.info("  %s", self._line(batch))
        self.model.train(was_training)

    def _line(self, batch: TargetBatch) -> str:
        middle = len(batch.labels_T) // 2
        logits_V = language_model.target_logits(self.model, batch.to(next(self.model.parameters()).device))[
            middle
        ].float()
        probability, predicted = logits_V.softmax(dim=0).max(dim=0)
        is_causal = language_model.objective_of(self.model) == "clm"
        slot, label = int(batch.slot_T[middle]) + is_causal, int(batch.labels_T[middle])
        ids = batch.input_ids_BL[0].tolist()
        before = ids[max(slot - _NUM_CONTEXT_TOKENS, 1) : slot]
        after = [] if is_causal else ids[slot + 1 : min(slot + 1 + _NUM_CONTEXT_TOKENS, len(ids) - 1)]
        shown = " ".join(
            [self.tokenizer.decode(before, skip_special_tokens=False), "____"]
            + [self.tokenizer.decode(after, skip_special_tokens=False)] * bool(after)
        )
        guess, truth = (self.tokenizer.decode([id_], skip_special_tokens=False) for id_ in (int(predicted), label))
        return f"{shown} → {guess!r} ({probability:.0%}), it is {truth!r}"
