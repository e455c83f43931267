"""metrics/evaluate.json: how well the encoder predicts hidden tokens, beside the unigram baseline."""

from clozeline.artifacts.record import MetricFile


class EncoderMetrics(MetricFile):
    """Figures over the whole validation set. A nat is a unit of natural logarithm."""

    loss_nats_per_token: float
    perplexity: float
    nats_per_byte: float
    """Includes a charge for the text of unknown tokens: see evaluation/figures.py."""
    text_bytes: int
    target_tokens: int
    top1: float
    top5: float
    unigram_perplexity: float
    unigram_top1: float
    unigram_top5: float
    contaminated_fraction: float
    """Share of the validation texts that have a near-duplicate in the training text, 0-1."""
