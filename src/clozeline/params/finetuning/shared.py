"""Section `finetune`, as far as it is the same for every kind of task."""

from typing import Annotated, ClassVar

from pydantic import Field

from clozeline.params.optimization import OptimizerParams
from clozeline.params.section import Count, Fraction, Rule, Section, Share


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
    epochs: Count
    optimizer: OptimizerParams
    warmup_fraction: Share
    num_examples: Annotated[int, Field(ge=0)]
    """Test items shown with what was right and what was said."""
    num_threads: Count | None
    rules: ClassVar[tuple[Rule, ...]] = (
        ("validation_fraction test_fraction", lambda a, b: a + b < 1, "a sum below 1: the rest is trained on"),
    )
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
