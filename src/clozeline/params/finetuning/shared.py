"""Part of the section `finetune` that all kinds of task share."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clozeline.params.optimization import OptimizerParams
from clozeline.params.section import BelowOne, Count, Fraction, Positive, Rule, Section, Share


class HubParams(Section):
    """A dataset of the Hugging Face hub, or a local folder of the same layout."""

    dataset: str
    subset: str | None = None
    revision: str | None = None


class SplitsParams(Section):
    """Source of each split: a file of the folder `data`, or a split of the hub dataset.

    A split that is null is taken out of `train`, by `validation_fraction` or `test_fraction`.
    """

    train: str
    validation: str | None = None
    test: str | None = None


class LoraParams(Section):
    """Low-rank adapters beside every matrix of the layers (Hu et al. 2022), merged into the weights at the end."""

    rank: Count
    alpha: Count
    """The adapters' product is multiplied by `alpha` / `rank`."""
    dropout: BelowOne


class FinetuneParams(Section):
    """Knobs of every kind; each kind adds its own in a subclass."""

    kind: str
    data: str
    """Path that DVC watches: a file, a folder, or for a hub dataset the lock that fixes the version of its reader."""
    hub: HubParams | None
    splits: SplitsParams | None
    """Null: one file (or the split `train`); the hash of each record decides its split."""
    validation_fraction: Fraction
    test_fraction: Fraction
    max_length: Annotated[int, Field(ge=8)]
    batch_size: Count
    micro_batch_tokens: Count | None
    """Maximum number of tokens in memory at once, including padding; gradients are summed exactly. Null: no limit."""
    epochs: Count
    looks_per_epoch: Count
    """Number of validation passes per epoch; the weights of the best one are kept."""
    patience: Count | None
    """Validation passes without a better figure after which training stops; null: train to the end."""
    num_seeds: Count
    """Number of training runs, with seeds from `seed` upwards. The best run on the validation split is kept; mean and
    deviation of the test figure over all runs are reported.
    """
    optimizer: OptimizerParams
    rate_factors: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Multiples of the learning rate: each trains up to its first validation pass. The first one goes on, unless
    another is clearly better.
    """
    warmup_fraction: Share
    layer_decay: Annotated[float, Field(gt=0, le=1)]
    """Ratio of each layer's learning rate to that of the layer above it; 1: all equal."""
    frozen_layers: Annotated[int, Field(ge=0)] | None
    """Number of lowest layers that stay frozen, with the embeddings; null: everything is trained."""
    lora: LoraParams | None
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    checkpoint_every_steps: Count | None
    """Steps between additional checkpoints; null: only one at each validation pass."""
    num_examples: Annotated[int, Field(ge=0)]
    """Number of test items shown with the right answer and the model's."""
    num_threads: Count | None
    rules: ClassVar[tuple[Rule, ...]] = (
        ("validation_fraction test_fraction", lambda a, b: a + b < 1, "a sum below 1: the rest is the training split"),
        (
            "lora frozen_layers",
            lambda lora, frozen: lora is None or frozen is None,
            "`frozen_layers: null` beside `lora`, which trains adapters and head alone",
        ),
        (
            "micro_batch_tokens max_length",
            lambda most, length: most is None or most >= length,
            "`micro_batch_tokens` is not below `max_length`: a row must fit",
        ),
        ("rate_factors", lambda factors: len(set(factors)) == len(factors), "factors that all differ"),
    )
    idle: ClassVar[tuple[str, ...]] = ()
    """Shared knobs that have no effect in this kind."""

    @property
    def instead_of_causal(self) -> str:
        """What to set, and why, if the encoder is causal and cannot learn this task; empty if it can."""
        return ""

    @property
    def instead_of_first_token(self) -> str:
        """What to set, and why, if the encoder is causal and this task reads its first token; empty if it does not."""
        return ""
