"""metrics/evaluate.json: how well the encoder predicts hidden tokens, beside the unigram baseline."""

import math
from typing import Final

from clozeline.artifacts.record import MetricFile

NATS_PER_UNKNOWN_BYTE: Final = math.log(256)
"""Charge for an unknown token in `nats_per_byte`, as if its bytes were spelled in equally likely bytes."""


class TextFigures(MetricFile):
    """Figures of one model on some text; `_low` and `_high` are the ends of a 95 % interval. A nat is a unit of natural
    logarithm.
    """

    loss_nats_per_token: float
    loss_nats_per_token_low: float
    loss_nats_per_token_high: float
    perplexity: float
    """exp of the summed loss over the number of targets; not the mean of batch means."""
    perplexity_low: float
    perplexity_high: float
    nats_per_byte: float
    """Loss of all targets and the charge for unknown tokens (evaluation/figures.py), per UTF-8 byte of the raw text:
    the figure to compare across tokenizers.
    """
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
    contaminated_fraction: float
    """Share of the validation texts that have a near-duplicate in the training text, 0-1."""
    pseudo_documents: int | None = None
    """Documents whose tokens were also hidden one at a time; None if that was not asked for."""
    pseudo_target_tokens: int | None = None
