"""Progress, warnings and examples of a running training.

The examples are predictions for sentences of held-out text with a hidden word or a cut-off end. The two losses of
replaced-token detection are logged separately.

Shapes: L tokens of a row, V vocabulary.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Self, TypeVar
from unicodedata import category

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from clozeline.encoder.families.layout import LanguageHead
from clozeline.language import detection, models, objectives
from clozeline.language.models import LanguageModel
from clozeline.language.spelling import Spelling
from clozeline.pretraining.losses import Judge, TargetLoss
from clozeline.system.progress import ProgressBar
from clozeline.training.curves import CurvePoint, ValidationPass
from clozeline.training.state import Callback, PlateauWarning, State

Item = TypeVar("Item")
# Shortest and longest sentence in tokens: short enough to read, long enough to understand.
_LENGTHS = (12, 28)
# Rows that are searched for sentences, spread over the split.
_MOST_ROWS = 2_000
_LEAST_LETTERS = 4
# Smallest share of letters and white space in a sentence; tables have less.
_LEAST_SHARE_OF_LETTERS = 0.9
_OF_CODE = frozenset("`_=:()[]{}<>|/\\#*@$~^")
_STOPS = (".", "!", "?", "…", "。", "！", "？", "।", "۔")
_NUM_GUESSES = 5
_NUM_CONTINUED = 12
_LOG = logging.getLogger(__name__)
# Predictions that are logged at each validation pass.
NUM_EXAMPLES = 3
_PATIENCE_LOOKS = 3


@dataclass(frozen=True)
class ShownQuestion:
    """A held-out passage and the token to predict."""

    input_ids: tuple[int, ...]
    slot: int  # position at which the model answers
    text: str
    truth: str
    is_sentence: bool  # whether the passage is a whole sentence


@dataclass(frozen=True)
class ShownAnswer:
    guesses: tuple[tuple[str, float], ...]  # tokens and their probabilities, the most likely first
    continuation: str  # greedy continuation by a causal model; empty for other models


@dataclass(frozen=True)
class Examiner:
    """Asks every model with these tokens the same questions."""

    split: objectives.Split
    tokenizer: Tokenizer
    spelling: Spelling
    head: LanguageHead
    # Tokens that one minute of training meets some hundred times; rarer ones are never hidden. None: no limit.
    is_frequent_V: NDArray[np.bool_] | None = None

    def questions(self, num_questions: int) -> list[ShownQuestion]:
        """Choose sentences spread over the split, each with a word to hide; any passages where there are too few."""
        rows = _spread(np.flatnonzero(self.split.rows.length_R >= _LENGTHS[0]).tolist(), _MOST_ROWS)
        found = [question for row in rows if (question := self._question(row)) is not None]
        sentences = [question for question in found if question.is_sentence]
        return _spread(sentences if len(sentences) >= num_questions else found, num_questions)

    @torch.no_grad()
    def ask(self, model: LanguageModel, question: ShownQuestion) -> ShownAnswer:
        """Return the model's answer. Its mode, training or evaluation, is restored afterwards."""
        was_training = model.training
        model.eval()
        probability_V = _logits(model, question.input_ids, question.slot).softmax(dim=0)
        best = probability_V.topk(_NUM_GUESSES)
        guesses = zip(map(self._token, best.indices.tolist()), best.values.tolist(), strict=True)
        continuation = self._continued(model, question) if self.head == "clm" else ""
        model.train(was_training)
        return ShownAnswer(tuple(guesses), continuation)

    def _question(self, row: int) -> ShownQuestion | None:
        """Build a question from the first usable sentence of the row, else from its beginning."""
        tokens = self.split.read(np.array([row]))
        ids = tokens.input_ids_N.tolist()
        for sentence in self._sentences(ids, begins_document=tokens.position_N[0] == 0):
            question = self._asked(sentence, is_sentence=True)
            if question is not None:
                return question
        return self._asked(ids[: _LENGTHS[1]], is_sentence=False)

    def _sentences(self, ids: list[int], *, begins_document: bool) -> Iterator[list[int]]:
        """Yield readable sentences: spans between stops, and the first span if a document begins with the row."""
        stops = [place for place, id_ in enumerate(ids) if self._token(id_) in _STOPS]
        for before, stop in pairwise([-1, *stops] if begins_document else stops):
            sentence = ids[before + 1 : stop + 1]
            if _LENGTHS[0] <= len(sentence) <= _LENGTHS[1] and reads_as_sentence(self.tokenizer.decode(sentence)):
                yield sentence

    def _asked(self, ids: list[int], *, is_sentence: bool) -> ShownQuestion | None:
        """Hide a whole word in the second half of `ids`; None if there is none."""
        continues_L = self.spelling.continues_word(np.array(ids), np.arange(len(ids)) > 0)
        is_whole_L = ~continues_L[:-1] & ~continues_L[1:]
        second_half = range(len(ids) // 2, len(ids) - 1)
        words = [place for place in second_half if is_whole_L[place] and self._is_askable(ids[place])]
        if not words and self.is_frequent_V is None:  # a script whose tokens are single characters
            words = [place for place in second_half if self._token(ids[place]).isalnum()]
        if not words:
            return None
        place, boundary = words[0], self.split.boundary
        truth = self._token(ids[place])
        if self.head == "clm":
            shown = (boundary.cls, *ids[:place])
            return ShownQuestion(shown, len(shown) - 1, f"{self.tokenizer.decode(ids[:place])} …", truth, is_sentence)
        hidden = [*ids[:place], self.split.vocabulary.mask_id, *ids[place + 1 :]]
        text = self.tokenizer.decode(hidden, skip_special_tokens=False)
        return ShownQuestion((boundary.cls, *hidden, boundary.sep), place + 1, text, truth, is_sentence)

    def _is_askable(self, id_: int) -> bool:
        token = self._token(id_)
        is_frequent = self.is_frequent_V is None or bool(self.is_frequent_V[id_])
        return is_frequent and token.isalpha() and len(token) >= _LEAST_LETTERS

    def _continued(self, model: LanguageModel, question: ShownQuestion) -> str:
        ids = list(question.input_ids)
        while len(ids) < len(question.input_ids) + _NUM_CONTINUED:
            ids.append(int(_logits(model, tuple(ids), len(ids) - 1).argmax()))
            if ids[-1] == self.split.boundary.sep:
                break
        return str(self.tokenizer.decode(ids[len(question.input_ids) :]))

    def _token(self, id_: int) -> str:
        return str(self.tokenizer.decode([id_], skip_special_tokens=False)).strip()


def reads_as_sentence(text: str) -> bool:
    """Whether the text is nearly all letters (of any script), has no characters of code, and ends with a stop."""
    letters = sum(character.isalpha() or character.isspace() or category(character)[0] == "M" for character in text)
    return text.endswith(_STOPS) and _OF_CODE.isdisjoint(text) and letters >= _LEAST_SHARE_OF_LETTERS * (len(text) - 1)


def _spread(items: Sequence[Item], most: int) -> list[Item]:
    """Pick at most `most` items at equal distances."""
    return [items[place] for place in np.linspace(0, len(items) - 1, min(most, len(items))).astype(int)]


def _logits(model: LanguageModel, input_ids: tuple[int, ...], slot: int) -> torch.Tensor:
    """Return `logits_V` at `slot`."""
    batch = objectives.TargetBatch(torch.tensor([input_ids]), None, torch.tensor([slot]), torch.tensor([0]))
    logits_TV = models.target_logits(model, batch.to(next(model.parameters()).device))
    return logits_TV[0].float().cpu()


@dataclass(frozen=True)
class ShownExamples(Callback):
    """Logs the model's predictions for the same few held-out sentences at each validation pass."""

    model: LanguageModel
    examiner: Examiner
    questions: tuple[ShownQuestion, ...]

    @classmethod
    def of(cls, model: LanguageModel, validation: objectives.Split, tokenizer: Path) -> Self:
        """Choose sentences spread over the validation split."""
        reader = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        examiner = Examiner(validation, reader, Spelling.open(tokenizer), models.head_of(model))
        return cls(model, examiner, tuple(examiner.questions(NUM_EXAMPLES)))

    def on_validation(self, validation: ValidationPass) -> None:
        for question in self.questions:
            (guess, probability), *_ = self.examiner.ask(self.model, question).guesses
            _LOG.info("  %s → %r (%.0f %%), right: %r", question.text, guess, 100 * probability, question.truth)


@dataclass(frozen=True)
class ShownParts(Callback):
    """Logs both losses at each validation pass, and warns if the generator stays on the unigram plateau.

    Their sum does not show either: a better generator makes the discriminator's task harder.
    """

    model: detection.ReplacedTokenPair
    generator: Judge
    discriminator_weight: float
    plateau: PlateauWarning

    def on_validation(self, validation: ValidationPass) -> None:
        was_training = self.model.training
        self.model.eval()
        generator = self.generator.measure().loss
        self.model.train(was_training)
        discriminator = (validation.loss - generator) / self.discriminator_weight
        _LOG.info("  generator %.3f nats per target, discriminator %.4f nats per token", generator, discriminator)
        self.plateau.hear(validation.step, generator)


def plateau_warning(
    model: LanguageModel, judge: Judge, discriminator_weight: float, unigram_loss: float, first_step: int
) -> PlateauWarning | ShownParts:
    """Return what warns if the loss stays on the unigram plateau, of a pair the generator's; `judge` measures the loss,
    of a pair the sum of both.
    """
    if isinstance(model, detection.ReplacedTokenPair):
        plateau = PlateauWarning(unigram_loss, first_step, patience_points=_PATIENCE_LOOKS)
        return ShownParts(model, replace(judge, loss=TargetLoss(model)), discriminator_weight, plateau)
    return PlateauWarning(unigram_loss, first_step)


class Advancing(Callback):
    """Moves a progress bar, and measures the speed."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._seconds = 0.0
        self._num_tokens = 0
        # Pairs of a step and the real tokens per second since the previous point.
        self.speeds: list[tuple[int, float]] = []

    def on_start(self, state: State) -> None:
        self._bar.start_at(state.step)
        self._seconds, self._num_tokens = time.monotonic(), state.num_tokens

    def on_point(self, point: CurvePoint) -> None:
        now = time.monotonic()
        speed = (point.num_tokens - self._num_tokens) / (now - self._seconds)
        self._seconds, self._num_tokens = now, point.num_tokens
        self.speeds.append((point.step, speed))
        self._bar.advance(point.step - self._bar.done, note=f"{_quality(point)}, {speed:,.0f} tokens/s")


def _quality(point: CurvePoint) -> str:
    return f"loss {point.loss:.3f}" + ("" if point.accuracy is None else f", accuracy {100 * point.accuracy:.1f} %")
