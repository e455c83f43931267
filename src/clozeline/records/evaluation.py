"""Figures and examples of an evaluation: how well the encoder predicts hidden tokens, beside the unigram baseline.

metrics/evaluate.json has the figures. plots/evaluate/*.csv have the loss by groups of tokens, one row for each group
with targets. reports/examples/examples.json has rows of text with hidden tokens, and the encoder's predictions of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from clozeline.records.record import MetricFile

FILE = "examples.json"

# Charge for an unknown token in `nats_per_byte`, as if its bytes were spelled in equally likely bytes.
NATS_PER_UNKNOWN_BYTE = math.log(256)


@dataclass(frozen=True)
class ClozeCandidate:
    """A predicted token and its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class Guess:
    """One hidden token and its predictions."""

    original: str
    original_probability: float
    candidates: tuple[ClozeCandidate, ...]  # most likely tokens, best first

    @property
    def predicted(self) -> str:
        return self.candidates[0].token

    @property
    def probability(self) -> float:
        return self.candidates[0].probability

    @property
    def rank(self) -> int | None:
        """Rank of the hidden token among the candidates, from 1; None if it is not among them."""
        tokens = [candidate.token for candidate in self.candidates]
        return tokens.index(self.original) + 1 if self.original in tokens else None

    @property
    def outcome(self) -> Literal["hit", "near", "miss"]:
        if self.rank is None:
            return "miss"
        return "hit" if self.rank == 1 else "near"


@dataclass(frozen=True)
class ClozeExample:
    """One row of text with a fold of its tokens hidden."""

    original: str
    masked: str
    mask_token: str  # string that replaces a hidden token in `masked`; unused with a causal model, which hides none
    guesses: tuple[Guess, ...]  # hidden tokens in the order of the text


def write_examples(folder: Path, examples: Sequence[ClozeExample]) -> None:
    content = TypeAdapter(Sequence[ClozeExample]).dump_json(examples, indent=1)
    (folder / FILE).write_bytes(content + b"\n")


class TextFigures(MetricFile):
    """Figures of one model on some text; `_low` and `_high` are the ends of a 95 % interval. A nat is a unit of natural
    logarithm.
    """

    loss_nats_per_token: float
    loss_nats_per_token_low: float
    loss_nats_per_token_high: float
    perplexity: float  # exp of the summed loss over the number of targets; not the mean of batch means
    perplexity_low: float
    perplexity_high: float
    # Loss of all targets and the charge for unknown tokens (evaluation/measuring.py), per UTF-8 byte of the raw text:
    # the figure to compare across tokenizers.
    nats_per_byte: float
    nats_per_byte_low: float
    nats_per_byte_high: float
    text_bytes: int
    target_tokens: int
    top1: float
    top1_low: float
    top1_high: float
    top5: float


class EncoderMetrics(TextFigures):
    """Figures over the whole validation set."""

    unigram_perplexity: float
    unigram_top1: float
    unigram_top5: float
    contaminated_fraction: float  # share of the validation texts that have a near-duplicate in the training text, 0-1
    # Documents whose tokens were also hidden one at a time; None if that was not asked for.
    pseudo_documents: int | None = None
    pseudo_target_tokens: int | None = None


@dataclass(frozen=True)
class CalibrationRow:
    """Targets by confidence (DeGroot & Fienberg 1983); a calibrated model's accuracy equals its confidence."""

    confidence_above: float
    confidence_to: float
    targets: int
    mean_confidence: float
    accuracy: float


@dataclass(frozen=True)
class FrequencyRow:
    """Targets by the frequency of their token in the training text."""

    times_in_training: str
    kinds_of_token: int
    targets: int
    loss_nats_per_token: float
    top1: float
    top5: float


@dataclass(frozen=True)
class PlaceRow:
    """Targets by their position in the row, counted from [CLS]."""

    place_from: int
    place_to: int
    targets: int
    loss_nats_per_token: float
    top1: float
    top5: float


@dataclass(frozen=True)
class WordClassRow:
    """Targets by kind: a whole word, the first piece of a longer word, or a later piece."""

    word_class: str
    targets: int
    loss_nats_per_token: float
    top1: float
    top5: float
