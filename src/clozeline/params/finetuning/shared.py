"""Section `finetune`, as far as it is the same for every kind of task."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clozeline.params.optimization import OptimizerParams
from clozeline.params.section import BelowOne, Count, Fraction, Rule, Section, Share


class HubParams(Section):
    """A dataset of the Hugging Face hub, or a local folder of the same shape."""

    dataset: str
    subset: str | None = None
    revision: str | None = None


class SplitsParams(Section):
    """Which file of the folder `data`, or which split of the hub dataset, is which part.

    A part that is null is taken out of `train`, by `validation_fraction` or `test_fraction`.
    """

    train: str
    validation: str | None = None
    test: str | None = None


class LoraParams(Section):
    """Low-rank adapters beside every matrix of the layers (Hu et al. 2022); merged into plain weights at the end."""

    rank: Count
    alpha: Count
    """The adapters' product is multiplied by `alpha` / `rank`."""
    dropout: BelowOne


class FinetuneParams(Section):
    """What every kind has; a kind adds its own knobs in a class of its own."""

    kind: str
    data: str
    """What DVC watches: a file, a folder, or for a hub dataset the lock that versions its reader."""
    preset: str | None
    """A row of PRESETS: what it sets lies under what the task says itself."""
    hub: HubParams | None
    splits: SplitsParams | None
    """Null: one file (or the split `train`), of which each record goes where its own hash sends it."""
    validation_fraction: Fraction
    test_fraction: Fraction
    max_length: Annotated[int, Field(ge=8)]
    batch_size: Count
    micro_batch_tokens: Count | None
    """At most so many, padding among them, are in memory at once; gradients are summed exactly. Null: no bound."""
    epochs: Count
    looks_per_epoch: Count
    """How often the validation part is looked at; the weights of the best look are kept."""
    patience: Count | None
    """Stop after so many looks without a better figure; null: train to the end."""
    num_seeds: Count
    """So many trainings, from `seed` on; the best on the validation part is kept, and the test figure's mean and
    deviation over all are reported."""
    optimizer: OptimizerParams
    warmup_fraction: Share
    layer_decay: Annotated[float, Field(gt=0, le=1)]
    """Each layer learns at so much of the rate of the one above it; 1: all alike."""
    frozen_layers: Annotated[int, Field(ge=0)] | None
    """Embeddings and so many of the lowest layers are not trained; null: all are."""
    lora: LoraParams | None
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    checkpoint_every_steps: Count | None
    """Beside those at each look; null: at looks alone."""
    num_examples: Annotated[int, Field(ge=0)]
    """Test items shown with what was right and what was said."""
    num_threads: Count | None
    rules: ClassVar[tuple[Rule, ...]] = (
        ("validation_fraction test_fraction", lambda a, b: a + b < 1, "a sum below 1: the rest is trained on"),
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
    )
    idle: ClassVar[tuple[str, ...]] = ()
    """Knobs that a kind has from all kinds, and that do nothing in it."""
    measured_by: ClassVar[tuple[str, ...]] = (
        "kind",
        "preset",
        "hub",
        "splits",
        "validation_fraction",
        "test_fraction",
    )
    """Knobs (or sections of them) that with the seed decide what is measured: which items are the test part, and by
    which rules they are judged. Figures of two versions compare only where these are the same."""
