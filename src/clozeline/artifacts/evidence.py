"""What was measured of an INT8 graph before it was let answer; it stays with the package, in the manifest."""

from typing import Literal

from clozeline.artifacts.record import Record


class QuantizationScheme(Record):
    """How `model.int8.onnx` differs from `model.onnx`."""

    activations: Literal["uint8 per token, dynamic", "uint8 per batch, dynamic"]
    """Those that are not in `static_activations`."""
    weights: Literal[
        "int8 per column, symmetric",
        "int8 per matrix, symmetric",
        "uint8 per column, around 128",
        "uint8 per matrix, around 128",
    ]
    reduce_range: bool
    """Weights use 7 of 8 bits: without VNNI, products of signed 8-bit ones saturate."""
    embeddings: Literal["int8 per row, symmetric", "float32"]
    """A table that is the vocabulary head too keeps all 8 bits in both."""
    quantized_matmuls: int
    quantized_embeddings: int
    exact_matmuls: tuple[str, ...]
    """Products by a constant that stay in float32, by name; as do products of two activations."""
    quantized_activations: int
    """Tensors that the quantized products read."""
    static_activations: tuple[str, ...] = ()
    """Those of them, by name, whose scale is fixed: the range of the tokens of some texts, as uint8."""
    smoothed_activations: tuple[str, ...] = ()
    """Those of these whose furthest channels are divided first, and their rows of the weights multiplied."""
    static_ratio: float = 0.0
    """Their largest: how much coarser steps are that are fixed than those of the typical token's own scale."""

    @property
    def kind(self) -> str:
        """What a person is to think of it: with `exact_share: 1.0`, a ladder has rungs without a product in INT8."""
        if self.quantized_matmuls:
            return "INT8"
        return "products in fp32, embeddings in INT8" if self.quantized_embeddings else "fp32, nothing in INT8"


class Measured(Record):
    """A figure, and how sure it is."""

    value: float
    low: float
    high: float
    """Ends of its 95 % interval on other texts like these."""
    num_items: int
    num_texts: int
    """That they are of, for what is drawn is texts."""


class Check(Record):
    """One figure beside its limit."""

    name: str
    given: float
    must_be: Literal["at least", "at most"]
    limit: float
    is_passed: bool

    def __str__(self) -> str:
        is_count = self.limit > 1 and self.given.is_integer()
        given = f"{self.given:,.0f}" if is_count else f"{self.given:.4f}"
        return f"{self.name} is {given}, {self.must_be} {self.limit:g}: {'yes' if self.is_passed else 'NO'}"


class Rung(Record):
    """One scheme that was tried, on the texts of the export."""

    scheme: QuantizationScheme
    size_bytes: int
    """Of the file."""
    agreement: Measured
    """Share of masked tokens (encoder) or texts (classifier) that INT8 answers as fp32 does; of an encoder without a
    head, of first halves of texts for which it finds the same second half, of first texts for which it finds the same
    second text, or of scored pairs that it says the same of: whether they are more alike than the pair before; of
    several labels for each text, of the labels that either of both gives; of a tagger, of the words that either says
    are of an entity."""
    different_answers: int
    """Of fp32, to all that was asked."""
    metric: str
    """Of the task: what fp32 and INT8 get right. Without what is right (an agreement), INT8 is held to fp32."""
    fp32_metric: float
    int8_metric: float
    metric_ratio: Measured
    """INT8's over fp32's."""
    embedding_cosine_mean: float | None = None
    """Of an encoder: between the embeddings of a text by fp32 and by INT8."""
    embedding_cosine_min: float | None = None
    batch_flips: Measured
    """Share of answers that differ when the text is alone and when it is among others, padded."""
    batch_cosine_min: float | None = None
    """Between the embeddings of a text alone and among others."""
    saturation: float
    """Largest difference of any logit from sums that are wide enough, on the processor of the export."""
    checks: tuple[Check, ...]

    @property
    def is_passed(self) -> bool:
        return all(check.is_passed for check in self.checks)


class HalfPrecision(Record):
    """What the graph in float16 shows. A CPU, where that is measured, rounds fewer of its numbers than a GPU does."""

    size_bytes: int
    """Of the file."""
    largest_value: float
    """Of all that it computes in float16, on some of the texts, what masks have lowered by 32,752 among it; float16
    holds 65,504.
    """
    agreement: Measured
    """As of a `Rung`."""
    metric: str
    fp32_metric: float
    fp16_metric: float
    metric_ratio: Measured
    """Its own over fp32's."""
    embedding_cosine_mean: float | None = None
    embedding_cosine_min: float | None = None
    checks: tuple[Check, ...]

    @property
    def is_passed(self) -> bool:
        return all(check.is_passed for check in self.checks)
