"""Sections `preprocess` and `tokenize`: from raw text to token shards."""

from operator import le
from typing import Annotated, Literal

from pydantic import Field

from clozeline.params.section import Count, Fraction, Section, set_for


class SourceParams(Section):
    kind: Literal["python-docs", "files", "wikipedia-xml", "hub"]
    path: str
    pattern: str
    one_document_per: Literal["paragraph", "line", "file"]
    """Plain text only: other formats mark the end of a document themselves."""
    text_field: str
    label_field: str | None
    dataset: str | None
    subset: str | None
    revision: str | None
    rules = (("kind dataset", set_for("hub"), "set `dataset` for kind `hub`, and leave it null for any other"),)


class PreprocessParams(Section):
    source: SourceParams
    min_characters: Count
    max_characters: Count
    near_duplicate_similarity: Fraction
    same_side_similarity: Fraction
    validation_fraction: Fraction
    holdout_fraction: Annotated[float, Field(ge=0, lt=1)]
    rules = (
        ("min_characters max_characters", le, "`min_characters` not above `max_characters`: otherwise no text passes"),
        (
            "same_side_similarity near_duplicate_similarity",
            le,
            "`same_side_similarity` not above `near_duplicate_similarity`",
        ),
        (
            "validation_fraction holdout_fraction",
            lambda a, b: a + b < 1,
            "a sum below 1: the rest is the training split",
        ),
    )


class TokenizeParams(Section):
    algorithm: Literal["wordpiece", "bpe", "unigram", "existing"]
    existing: str | None
    vocab_size: Annotated[int, Field(ge=64, le=1_000_000)]
    min_frequency: Count
    lowercase: bool
    shard_tokens: Count
    rules = (
        ("algorithm existing", set_for("existing"), "set `existing` for algorithm `existing`, null for any other"),
    )
