"""metrics/evaluate.json: how well the encoder names hidden tokens, beside the unigram baseline."""

from clozeline.artifacts.record import MetricFile


class EncoderMetrics(MetricFile):
    """Figures of the whole validation set; a nat is log base e."""

    loss_nats_per_token: float
    perplexity: float
    nats_per_byte: float
    """With a charge for the text of unknown tokens: see evaluation/figures.py."""
    text_bytes: int
    target_tokens: int
    top1: float
    top5: float
    unigram_perplexity: float
    unigram_top1: float
    unigram_top5: float
    contaminated_fraction: float
    """Of the validation texts, those that are nearly in the training text."""
