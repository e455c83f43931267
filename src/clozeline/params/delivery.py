"""Sections `export` and `release`: what leaves the house, and what must hold for it."""

from typing import Annotated

from pydantic import Field

from clozeline.params.section import Count, Positive, Section, Share


class ExportParams(Section):
    models: dict[str, str]
    opset: Annotated[int, Field(ge=14, le=20)]
    """20 is the highest that the exporter of torch 2.13 under optimum writes."""
    per_token: bool
    per_channel: bool
    reduce_range: bool
    quantize_embeddings: bool
    num_agreement_texts: Count
    max_parity_difference: Positive


class ReleaseParams(Section):
    min_int8_agreement: Share
    min_unigram_ratio: Positive
    """The unigram baseline's perplexity over the encoder's: what a first version, too, must reach."""
    max_perplexity_ratio: Positive
    min_accuracy_delta: Annotated[float, Field(ge=-1, le=1)]
    """Of the headline figure of a task: accuracy, or what its kind has in its place."""
