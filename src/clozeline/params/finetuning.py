"""Section `finetune`: one entry for each task."""

from typing import Annotated, Literal

from pydantic import Field

from clozeline.params.optimization import OptimizerParams
from clozeline.params.section import Count, Fraction, Section, Share


class FinetuneParams(Section):
    kind: Literal["classification"]
    data: str
    text_field: str
    label_field: str
    max_classes: Annotated[int, Field(ge=2)]
    max_per_class: Count
    validation_fraction: Fraction
    test_fraction: Fraction
    max_length: Annotated[int, Field(ge=8)]
    batch_size: Count
    epochs: Count
    optimizer: OptimizerParams
    warmup_fraction: Share
    num_threads: Count | None
    rules = (("validation_fraction test_fraction", lambda a, b: a + b < 1, "a sum below 1: the rest is trained on"),)
