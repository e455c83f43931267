"""Evidence that an INT8 graph is fit to be served, measured at export and kept in the manifest."""

from typing import Literal

from clozeline.artifacts.record import Record


class QuantizationScheme(Record):
    """How `model.int8.onnx` differs from `model.onnx`."""

    activations: Literal["uint8 per token, dynamic", "uint8 per batch, dynamic"]
    """How the activations outside `static_activations` are quantized."""
    weights: Literal[
        "int8 per column, symmetric",
        "int8 per matrix, symmetric",
        "uint8 per column, around 128",
        "uint8 per matrix, around 128",
    ]
    reduce_range: bool
    """`int7` in params.yaml, stored as int8: sums of signed 8-bit products saturate on processors without VNNI."""
    embeddings: Literal["int8 per row, symmetric", "float32"]
    """A table shared with the vocabulary head keeps all 8 bits in both uses."""
    quantized_matmuls: int
    quantized_embeddings: int
    exact_matmuls: tuple[str, ...]
    """Names of the products with a constant that stay in float32. Products of two activations always do."""
    quantized_activations: int
    """Number of tensors that the quantized products read."""
    static_activations: tuple[str, ...] = ()
    """Names of the activations with a fixed scale, calibrated on some texts and stored as uint8."""
    smoothed_activations: tuple[str, ...] = ()
    """Names of the static activations whose outlier channels are divided by a factor that multiplies the matching rows
    of the weights (SmoothQuant, Xiao et al. 2023)."""
    static_ratio: float = 0.0
    """Largest ratio, over the static activations, of the fixed step to the step of a typical token's own scale."""

    @property
    def kind(self) -> str:
        """Short readable name. With `exact_share: 1.0` a rung has no product in INT8."""
        if self.quantized_matmuls:
            return "INT8"
        return "products in fp32, embeddings in INT8" if self.quantized_embeddings else "fp32, nothing in INT8"

    def __str__(self) -> str:
        """Description in the terms of `export.ladder`; different schemes have different descriptions."""
        weights = self.weights.replace("int8", "int7") if self.reduce_range else self.weights
        num_exact, num_static = len(self.exact_matmuls), len(self.static_activations)
        summary = f"weights {weights}; {num_exact} of {self.quantized_matmuls + num_exact} weight products in fp32"
        summary = f"{summary}; embeddings {self.embeddings}; activations {self.activations}"
        if not num_static:
            return summary
        smoothed = f", {len(self.smoothed_activations)} smoothed" if self.smoothed_activations else ""
        fixed = f"{num_static} of {self.quantized_activations} activations with a fixed scale"
        return f"{summary}; {fixed} (ratios up to {self.static_ratio:g}{smoothed})"


class Measured(Record):
    """A figure with its 95 % confidence interval."""

    value: float
    low: float
    high: float
    """`low` and `high` are the ends of the interval over other texts of the same kind."""
    num_items: int
    num_texts: int
    """Texts that the items come from. The bootstrap resamples texts."""


class Check(Record):
    """One figure and its limit."""

    name: str
    given: float
    must_be: Literal["at least", "at most"]
    limit: float
    is_passed: bool

    def __str__(self) -> str:
        is_count = self.limit > 1 and self.given.is_integer()
        given = f"{self.given:,.0f}" if is_count else f"{self.given:.4f}"
        return f"{self.name} is {given}, {self.must_be} {self.limit:g}: {'yes' if self.is_passed else 'NO'}"


class GraphEvidence(Record):
    """A graph beside the fp32 graph, with its measurements on the texts of the export."""

    size_bytes: int
    """Size of the graph file."""
    agreement: Measured
    """Share of items that the graph answers as fp32 does. What an item is depends on the kind of model:

    - encoder: a masked token;
    - classifier: a text; with several labels for each text, a label that either graph gives;
    - tagger: a word that either graph puts into an entity;
    - embedder: the first half of a text (does it find the same second half?), the first text of a pair (does it find
      the same second text?), or a scored pair (is it more similar than the pair before?).
    """
    metric: str
    """Name of the quality metric. Without labels it is the agreement with fp32."""
    fp32_metric: float
    metric_ratio: Measured
    """The metric of the graph / `fp32_metric`."""
    embedding_cosine_mean: float | None = None
    """Encoders: mean cosine between the embeddings of a text by fp32 and by the graph."""
    embedding_cosine_min: float | None = None
    token_cosine_mean: float | None = None
    """Mean cosine between the vectors of a token by fp32 and by the graph, for a model that gives them."""
    token_cosine_min: float | None = None
    checks: tuple[Check, ...]

    @property
    def is_passed(self) -> bool:
        return all(check.is_passed for check in self.checks)


class Rung(GraphEvidence):
    """Evidence for the INT8 graph of one scheme of the ladder."""

    scheme: QuantizationScheme
    different_answers: int
    """Number of distinct answers of fp32 over all items."""
    int8_metric: float
    batch_flips: Measured
    """Share of answers that change when a text is padded in a batch instead of running alone."""
    batch_cosine_min: float | None = None
    """Smallest cosine between the embeddings of a text run alone and run in a batch."""
    saturation: float
    """Largest difference of a logit from the same graph with 32-bit sums, on the processor of the export."""
