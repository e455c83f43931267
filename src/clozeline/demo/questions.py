"""What a model is asked before and after its training: held-out text, with a word hidden or an end cut off.

Shapes: L tokens of a row, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from clozeline.encoder import language_model
from clozeline.encoder.batches import Split
from clozeline.encoder.families import Objective
from clozeline.encoder.language_model import LanguageModel
from clozeline.encoder.objectives import TargetBatch
from clozeline.tokens.spelling import Spelling

_LENGTHS = (12, 28)
"""Tokens of a row that is short enough to be read and long enough to be understood."""
_LEAST_LETTERS = 4
_NUM_GUESSES = 5
_NUM_CONTINUED = 12


@dataclass(frozen=True)
class Question:
    """A row of the held-out part, and the token that is asked for."""

    input_ids: tuple[int, ...]
    slot: int
    """Where the model answers."""
    text: str
    truth: str


@dataclass(frozen=True)
class Answer:
    guesses: tuple[tuple[str, float], ...]
    """Tokens and their probabilities, the likeliest first."""
    continuation: str
    """Of a causal model: what it would write, each time the likeliest token."""


@dataclass(frozen=True)
class Examiner:
    """Asks the same questions of any model with these tokens."""

    split: Split
    tokenizer: Tokenizer
    spelling: Spelling
    objective: Objective
    is_frequent_V: NDArray[np.bool_]
    """Tokens that a minute is enough to meet some hundred times: rarer ones are not asked for."""

    def questions(self, num_questions: int) -> list[Question]:
        """Of rows spread over the split that have a whole word to ask for."""
        length_R = self.split.rows.length_R
        rows = np.flatnonzero((length_R >= _LENGTHS[0]) & (length_R <= _LENGTHS[1]))
        found = [question for row in rows if (question := self._question(int(row))) is not None]
        spread = np.linspace(0, len(found) - 1, min(num_questions, len(found))).astype(int)
        return [found[place] for place in spread]

    @torch.no_grad()
    def ask(self, model: LanguageModel, question: Question) -> Answer:
        """The model is in training mode afterwards, as it was before."""
        was_training = model.training
        model.eval()
        probability_V = _logits(model, question.input_ids, question.slot).softmax(dim=0)
        best = probability_V.topk(_NUM_GUESSES)
        guesses = zip(map(self._token, best.indices.tolist()), best.values.tolist(), strict=True)
        continuation = self._continued(model, question) if self.objective == "clm" else ""
        model.train(was_training)
        return Answer(tuple(guesses), continuation)

    def _question(self, row: int) -> Question | None:
        ids_L = self.split.read(np.array([row])).input_ids_N
        continues_L = self.spelling.continues_word(ids_L, np.arange(len(ids_L)) > 0)
        ids = ids_L.tolist()
        is_whole_L = ~continues_L[:-1] & ~continues_L[1:]
        second_half = range(len(ids) // 2, len(ids) - 1)
        words = [place for place in second_half if is_whole_L[place] and self._is_askable(ids[place])]
        if not words:
            return None
        place, boundary = words[0], self.split.boundary
        truth = self._token(ids[place])
        if self.objective == "clm":
            shown = (boundary.cls_id, *ids[:place])
            return Question(shown, len(shown) - 1, f"{self.tokenizer.decode(ids[:place])} …", truth)
        hidden = [*ids[:place], self.split.vocabulary.mask_id, *ids[place + 1 :]]
        text = self.tokenizer.decode(hidden, skip_special_tokens=False)
        return Question((boundary.cls_id, *hidden, boundary.sep_id), place + 1, text, truth)

    def _is_askable(self, id_: int) -> bool:
        token = self._token(id_)
        return bool(self.is_frequent_V[id_]) and token.isalpha() and len(token) >= _LEAST_LETTERS

    def _continued(self, model: LanguageModel, question: Question) -> str:
        ids = list(question.input_ids)
        while len(ids) < len(question.input_ids) + _NUM_CONTINUED:
            ids.append(int(_logits(model, tuple(ids), len(ids) - 1).argmax()))
            if ids[-1] == self.split.boundary.sep_id:
                break
        return str(self.tokenizer.decode(ids[len(question.input_ids) :]))

    def _token(self, id_: int) -> str:
        return str(self.tokenizer.decode([id_], skip_special_tokens=False)).strip()


def _logits(model: LanguageModel, input_ids: tuple[int, ...], slot: int) -> torch.Tensor:
    """`logits_V`."""
    batch = TargetBatch(torch.tensor([input_ids]), None, torch.tensor([slot]), torch.tensor([0]))
    logits_TV = language_model.target_logits(model, batch.to(next(model.parameters()).device))
    return logits_TV[0].float().cpu()
