"""Sections `export`, `release` and `imports`: how models are packaged, and which gates they have to meet.

`imports` has the published models as `clozeline import` resolved them.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from clozeline.params.schema import Count, Positive, Section, Share

_RUNG = re.compile(r"(\S+)(?: exact ([\d.]+))?( embeddings fp32)?")

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
PublishedTask = Literal[
    "fill-mask",
    "text-generation",
    "text-classification",
    "token-classification",
    "question-answering",
    "feature-extraction",
]
Weights = Literal["int7", "uint8", "int8"]
PoolingName = Literal["mean", "cls", "max"]


class RungParams(Section):
    """One INT8 scheme, a rung of the ladder: `int7 exact 0.1 embeddings fp32`, or a section with these keys."""

    weights: Weights  # see `exporting/quantization.py`
    # Share of the products with a weight that stay in fp32: those with the largest quantization error.
    exact_share: Share = 0.0
    quantize_embeddings: bool = True

    @model_validator(mode="before")
    @classmethod
    def _from_words(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        if found := _RUNG.fullmatch(" ".join(given.split())):
            weights, share, embeddings = found.groups()
            return {"weights": weights, "exact_share": share or 0.0, "quantize_embeddings": embeddings is None}
        raise PydanticCustomError("rung", "such as `int7`, `int7 exact 0.1` or `uint8 exact 0.25 embeddings fp32`")


class ExportGates(Section):
    """Gates of an INT8 graph, measured on `num_agreement_texts` texts. The other limits are in exporting/ladder.py."""

    min_agreement: Share
    min_metric_ratio: Share


class ExportParams(Section):
    models: dict[str, str]
    # torch's exporter writes opset 18 or later. From 23 on, attention is one operator.
    opset: Annotated[int, Field(ge=18, le=23)]
    max_parity_difference: Positive
    ladder: tuple[RungParams, ...]  # INT8 schemes in the order of trial; the first that passes `gates` is served
    # Limits of the ratio (`exporting/fixed_scales.py`), tried in this order on the scheme that passed. Activations up
    # to the limit, as they are or smoothed, get a fixed scale if that passes too and loses nothing. Empty: all scales
    # are computed at run time.
    static_ratios: tuple[Positive, ...]
    gates: ExportGates
    num_agreement_texts: Count
    label_field: str | None


class ReleaseParams(Section):
    # Evidence that a candidate needs, measured with the champion on the same items. `when_better`: the 95 % interval of
    # the difference shows an improvement. `when_not_worse`: it excludes a loss beyond `max_perplexity_ratio` or
    # `min_accuracy_delta`. `never`: a person promotes.
    promote: Literal["when_better", "when_not_worse", "never"]
    max_trial_items: Count  # largest number of texts or test items on which candidate and champion are measured
    min_int8_agreement: Share
    # Minimum speedup: fp32 time / INT8 time on the processor of the release, of one text or of a batch, whichever is
    # smaller. Below it fp32 is served there.
    min_int8_speedup: Positive
    # Minimum ratio of the unigram baseline's perplexity to the encoder's, for a first version too.
    min_unigram_ratio: Positive
    max_perplexity_ratio: Positive
    # Largest ratio of perplexities, candidate to champion, on validation text that was held out for both. A candidate
    # that continues from the champion is refused if the whole 95 % interval is above it.
    max_forgetting: Positive
    # Largest share of a model's evaluation texts that also occur in the pre-training text, verbatim or nearly. Null:
    # the share is only reported.
    max_contaminated_fraction: Share | None
    # Minimum change of a task's metric (accuracy, or the metric of its kind) against the champion.
    min_accuracy_delta: Annotated[float, Field(ge=-1, le=1)]
    # Hold a task's first version, unless it beats its simple baseline. It must always beat the trivial answer. Both
    # must be beaten by more than the 95 % interval.
    beat_baseline: bool


class ImportParams(Section):
    """One published model: which files, and what they say that config.json does not."""

    model: str  # folder, or name on the hub
    revision: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] | None  # commit on the hub; null for a folder
    task: PublishedTask
    pooling: PoolingName  # how the vectors of tokens become the vector of a text
    prompts: dict[str, str]  # name of a prompt → text before each text that is embedded with it
    default_prompt: str | None  # name of the prompt of texts that are embedded without one
    max_length: Count  # longest input in tokens, including special tokens
    reads_pairs: bool  # whether a classifier reads pairs of texts, such as premise and hypothesis
    items: str  # file with the items on which INT8 is compared with fp32, one JSON object per line
    sha256: dict[str, Sha256]  # file → sha256, for every file that is read

    rules = (
        (
            "prompts default_prompt",
            lambda prompts, name: name is None or name in prompts,
            "null, or the name of one of the `prompts`",
        ),
    )
