"""metrics/export/<model>.json: what became of a model on its way into a package."""

from typing import Self

from pydantic import model_validator

from clozeline.artifacts.evidence import HalfPrecision, Rung
from clozeline.artifacts.manifest import LastLayer, Precision
from clozeline.artifacts.record import MetricFile


class ExportMetrics(MetricFile):
    """Nothing that a clock or the name of the machine goes into."""

    served: Precision
    """INT8 if a scheme passed every check, else fp32."""
    fp32_size_bytes: int
    int8_size_bytes: int | None = None
    parity_max_abs_difference: float
    last_layer: LastLayer
    """Where it is computed, in both graphs."""
    num_agreement_texts: int
    """Texts, pairs, questions, … that both graphs were asked."""
    int8_agreement: float | None = None
    """Share of masked tokens (encoder), texts (classifier), … that INT8 answers as fp32 does: `Rung.agreement`."""
    num_agreement_items: int | None = None
    fp32_top1: float | None = None
    """Of an encoder: share of the masked tokens that it names; beside it the same of INT8."""
    int8_top1: float | None = None
    embedding_cosine_mean: float | None = None
    embedding_cosine_min: float | None = None
    quantized_matmuls: int | None = None
    quantized_embeddings: int | None = None
    quantized_activations: int | None = None
    """Tensors that the quantized products read; how many of them have a fixed scale."""
    static_activations: int | None = None
    smoothed_activations: int | None = None
    """Those of these that are smoothed first."""
    float_matmuls: int | None = None
    """Left in fp32: the small layers of the head, what the scheme leaves out, and products of two activations, but for
    those of attention that is one operator.
    """
    ladder: tuple[Rung, ...]
    """Every scheme that was tried, with its figures; those above are of the one that is served."""
    half: HalfPrecision | None = None
    """Of the graph in float16, if one was asked for."""

    @model_validator(mode="after")
    def _int8_has_its_figures(self) -> Self:
        if self.served == "int8" and (self.int8_size_bytes is None or self.int8_agreement is None):
            raise ValueError("`int8_size_bytes` and `int8_agreement` of the graph that is served")
        return self
