"""A task of the kind `tagging`."""

from typing import ClassVar, Literal

from clozeline.params.finetuning.shared import FinetuneParams


class TaggingParams(FinetuneParams):
    """A tag for each word: entities by type and extent."""

    kind: Literal["tagging"]
    tokens_field: str
    """Of JSON Lines, Parquet and hub datasets: the list of words."""
    tags_field: str
    """... and the list of their tags."""
    token_column: int
    """Of files in columns (CoNLL), counted from 0; from the last one back where negative."""
    tag_column: int
    measured_by: ClassVar[tuple[str, ...]] = (
        *FinetuneParams.measured_by,
        "tokens_field",
        "tags_field",
        "token_column",
        "tag_column",
    )
