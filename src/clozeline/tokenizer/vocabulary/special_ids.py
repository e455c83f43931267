"""Ids of a tokenizer's special tokens."""

from pydantic import BaseModel, ConfigDict


class SpecialIds(BaseModel):
    """Ids that never stand for text. `cls` and `sep` open and close a row, whatever the tokenizer calls them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pad: int
    cls: int
    sep: int
    mask: int
    unk: int | None
    every: tuple[int, ...]
    """All special ids, ascending: never targets, never drawn as replacements."""
