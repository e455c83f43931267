"""metrics/evaluate.json: how well the encoder predicts hidden tokens, beside the unigram baseline."""

import math
from typing import Final

from clozeline.artifacts.record import MetricFile

NATS_PER_UNKNOWN_BYTE: Final = math.log(256)
"""Charge for an unknown token in `nats_per_byte`, as if its bytes were spelled in equally likely bytes."""


class TextFigures(MetricFile):
    """Figures of one model on some text. A nat is a unit of natural logarithm."""

    loss_nats_per_token: float
    perplexity: float
    """exp of the summed loss over the number of targets; not the mean of batch means."""
    nats_per_byte: float
    """Loss of all targets and the charge for unknown tokens (evaluation/figures.py), per UTF-8 byte of the raw text:
    the figure to compare across tokenizers.
    """
    text_bytes: int
    target_tokens: int
    top1: float
    top5: float


class EncoderMetrics(TextFigures):
    """Figures over the whole validation set."""

    unigram_perplexity: float
    unigram_top1: float
    unigram_top5: float
    contaminated_fraction: float
    """Share of the validation texts that have a near-duplicate in the training text, 0-1."""
