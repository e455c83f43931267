"""Ids of a tokenizer's special tokens."""

from pydantic import BaseModel, ConfigDict


class SpecialIds(BaseModel):
    """Ids that never stand for text; `cls` and `sep` open and close a row in whatever name the tokenizer has them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pad: int
    cls: int
    sep: int
    mask: int
    unk: int | None
    every: tuple[int, ...]
    """All special ids in rising order: never a target, never drawn as a random word."""
