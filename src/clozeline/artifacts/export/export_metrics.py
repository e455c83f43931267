"""metrics/export/<model>.json: parity, INT8 quality and sizes of an exported model."""

from typing import Self

from pydantic import model_validator

from clozeline.artifacts.export.evidence import Rung
from clozeline.artifacts.export.manifest import LastLayer, Precision
from clozeline.artifacts.record import MetricFile


class ExportMetrics(MetricFile):
    """Holds no timing and no machine name, so that the file is reproducible."""

    served: Precision
    """`int8` if a scheme passed every check, else `fp32`."""
    fp32_size_bytes: int
    int8_size_bytes: int | None = None
    parity_max_abs_difference: float
    last_layer: LastLayer
    """Positions at which both graphs compute the last layer."""
    num_agreement_texts: int
    """Number of texts, pairs or questions that both graphs answered."""
    int8_agreement: float | None = None
    """Share of items that INT8 answers as fp32 does: `Rung.agreement`."""
    num_agreement_items: int | None = None
    fp32_top1: float | None = None
    """Encoders: share of masked tokens that fp32 predicts; `int8_top1` is the same for INT8."""
    int8_top1: float | None = None
    embedding_cosine_mean: float | None = None
    embedding_cosine_min: float | None = None
    token_cosine_mean: float | None = None
    token_cosine_min: float | None = None
    quantized_matmuls: int | None = None
    quantized_embeddings: int | None = None
    quantized_activations: int | None = None
    """Number of tensors that the quantized products read; `static_activations` of them have a fixed scale."""
    static_activations: int | None = None
    smoothed_activations: int | None = None
    """Number of static activations that are smoothed first."""
    float_matmuls: int | None = None
    """Products left in fp32: small layers of the head, those the scheme excludes, and products of two activations
    outside the fused attention operator.
    """
    ladder: tuple[Rung, ...]
    """Every scheme that was tried. The figures above belong to the scheme that is served."""

    @model_validator(mode="after")
    def _int8_has_its_figures(self) -> Self:
        if self.served == "int8" and (self.int8_size_bytes is None or self.int8_agreement is None):
            raise ValueError("`int8_size_bytes` and `int8_agreement`, because `served` is int8")
        return self
