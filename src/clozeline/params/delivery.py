"""Sections `export` and `release`: what leaves the house, and what must hold for it."""

from typing import Annotated, Literal

from pydantic import Field

from clozeline.params.section import Count, Positive, Section, Share


class RungParams(Section):
    """One INT8 scheme."""

    weights: Literal["int7", "uint8", "int8"]
    """See `exporting/quantization.py`."""
    exact_share: Share
    """Of the products by a weight: the worst of them, which stay in fp32."""
    quantize_embeddings: bool


class ExportGates(Section):
    """What an INT8 graph has to show on `num_agreement_texts` texts before it may answer."""

    min_agreement: Share
    min_agreement_texts: Count
    """Texts that the agreement is of. Below -3 / ln(min_agreement), not even INT8 that always agrees has shown it: as
    many texts would agree by chance once in 20 times though it is no better than the limit (0.97: 99)."""
    min_different_answers: Count
    """Of fp32, to all that it is asked. Where it always says the same, a graph that no longer reads agrees with it."""
    min_metric_ratio: Share
    min_metric_items: Count
    """Answers that the metric is of. Below 1 / (1 - min_metric_ratio), one answer weighs more than all that may be lost
    (0.995: 200)."""
    max_batch_flips: Share
    min_embedding_cosine: Share
    """Mean over the texts, to fp32's."""
    min_batch_cosine: Share


class ExportParams(Section):
    models: dict[str, str]
    opset: Annotated[int, Field(ge=18, le=23)]
    """Below 18 torch's exporter writes nothing by itself. From 23 on, attention is one operator."""
    max_parity_difference: Positive
    per_token: bool
    per_channel: bool
    ladder: tuple[RungParams, ...]
    """Tried in this order; the first that passes `gates` is served."""
    static_ratios: tuple[Positive, ...]
    """Tried in this order on the scheme that passed: activations whose ratio (`exporting/ranges.py`) is no larger, as
    they are or smoothed, get a fixed scale, if that passes too and loses nothing. Empty: all scales are computed at run
    time."""
    half: bool
    """Whether there is a graph in float16 too."""
    gates: ExportGates
    num_agreement_texts: Count
    num_calibration_texts: Count
    label_field: str | None


class ReleaseParams(Section):
    min_int8_agreement: Share
    min_int8_speedup: Positive
    """fp32's time over INT8's on the processor of the release, of one text or of a batch, where it is less; below it,
    fp32 is served there."""
    min_unigram_ratio: Positive
    """The unigram baseline's perplexity over the encoder's: what a first version, too, must reach."""
    max_perplexity_ratio: Positive
    max_contaminated_fraction: Share | None
    """Of the texts that a model is judged on, those that the pre-training had, nearly, seen. Null: only told."""
    min_accuracy_delta: Annotated[float, Field(ge=-1, le=1)]
    """Of the headline figure of a task: accuracy, or what its kind has in its place."""
