"""Sections `export` and `release`: how models are packaged, and which gates they have to meet."""

from typing import Annotated, Literal

from pydantic import Field

from clozeline.params.section import Count, Positive, Section, Share


class RungParams(Section):
    """One INT8 scheme: a rung of the ladder."""

    weights: Literal["int7", "uint8", "int8"]
    """See `exporting/quantization.py`."""
    exact_share: Share
    """Share of the products with a weight that stay in fp32: those with the largest quantization error."""
    quantize_embeddings: bool


class ExportGates(Section):
    """Gates of an INT8 graph, measured on `num_agreement_texts` texts."""

    min_agreement: Share
    min_agreement_texts: Count
    """Minimum number of texts for the agreement. Below -3 / ln(min_agreement), even INT8 that always agrees has shown
    nothing: a graph at the limit would agree on that many texts by chance once in 20 times (0.97: 99).
    """
    min_different_answers: Count
    """Minimum number of distinct answers of fp32. If fp32 always answers the same, a broken graph agrees with it."""
    min_metric_ratio: Share
    min_metric_items: Count
    """Minimum number of answers for the metric. Below 1 / (1 - min_metric_ratio), one answer weighs more than the
    whole permitted loss (0.995: 200).
    """
    max_batch_flips: Share
    min_embedding_cosine: Share
    """Mean over the texts of the cosine with fp32's embedding."""
    min_token_cosine: Share
    """Mean over the tokens of the cosine with fp32's vector. An embedding is a mean of these vectors, in which their
    differences cancel out, so its limit is higher.
    """
    min_batch_cosine: Share


class ExportParams(Section):
    models: dict[str, str]
    opset: Annotated[int, Field(ge=18, le=23)]
    """torch's exporter writes opset 18 or later. From 23 on, attention is one operator."""
    max_parity_difference: Positive
    per_token: bool
    per_channel: bool
    ladder: tuple[RungParams, ...]
    """INT8 schemes in the order of trial; the first that passes `gates` is served."""
    static_ratios: tuple[Positive, ...]
    """Limits of the ratio (`exporting/ranges.py`), tried in this order on the scheme that passed. Activations up to the
    limit, as they are or smoothed, get a fixed scale if that passes too and loses nothing. Empty: all scales are
    computed at run time.
    """
    half: bool
    """Whether to export a graph in float16 too."""
    gates: ExportGates
    num_agreement_texts: Count
    num_calibration_texts: Count
    label_field: str | None


class ReleaseParams(Section):
    promote: Literal["when_better", "when_not_worse", "never"]
    """Evidence that a candidate needs, measured with the champion on the same items. `when_better`: the 95 % interval
    of the difference shows an improvement. `when_not_worse`: it excludes a loss beyond `max_perplexity_ratio` or
    `min_accuracy_delta`. `never`: a person promotes.
    """
    max_trial_items: Count
    """Largest number of texts or test items on which candidate and champion are measured."""
    min_int8_agreement: Share
    min_int8_speedup: Positive
    """Minimum speedup: fp32 time / INT8 time on the processor of the release, of one text or of a batch, whichever is
    smaller. Below it fp32 is served there.
    """
    min_unigram_ratio: Positive
    """Minimum ratio of the unigram baseline's perplexity to the encoder's, for a first version too."""
    max_perplexity_ratio: Positive
    max_forgetting: Positive
    """Largest ratio of perplexities, candidate to champion, on validation text that was held out for both. A candidate
    that continues from the champion is refused if the whole 95 % interval is above it.
    """
    max_contaminated_fraction: Share | None
    """Largest share of a model's evaluation texts that also occur in the pre-training text, verbatim or nearly. Null:
    the share is only reported.
    """
    min_accuracy_delta: Annotated[float, Field(ge=-1, le=1)]
    """Minimum change of a task's metric (accuracy, or the metric of its kind) against the champion."""
    beat_baseline: bool
    """Hold a task's first version, unless it beats its simple baseline. It must always beat the trivial answer. Both
    must be beaten by more than the 95 % interval."""
