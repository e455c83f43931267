"""Tasks of the kind `tagging`."""

from typing import Literal

from clozeline.params.finetuning.shared import FinetuneParams


class TaggingParams(FinetuneParams):
    """Tasks with a tag for each word: entities by type and extent."""

    kind: Literal["tagging"]
    tokens_field: str
    """JSON Lines, Parquet and hub datasets: field of the list of words."""
    tags_field: str
    """... and field of the list of their tags."""
    token_column: int
    """Files in columns (CoNLL): column of the words, counted from 0, or from the last one back if negative."""
    tag_column: int

    @property
    def instead_of_causal(self) -> str:
        return "objective `mlm`, because a causal model has not read the words after the one that it tags"
