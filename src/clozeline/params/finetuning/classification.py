"""A task of the kind `classification`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clozeline.params.finetuning.shared import FinetuneParams
from clozeline.params.section import Count


class ClassificationParams(FinetuneParams):
    """One label for each text."""

    kind: Literal["classification"]
    text_field: str
    label_field: str
    max_classes: Annotated[int, Field(ge=2)] | None
    """The most frequent labels; rarer ones are left out and counted. Null: all."""
    max_per_class: Count | None
    measured_by: ClassVar[tuple[str, ...]] = (
        *FinetuneParams.measured_by,
        "text_field",
        "label_field",
        "max_classes",
        "max_per_class",
    )
