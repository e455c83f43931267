"""Sections `preprocess`, `tokenize` and `contract`: from raw text to token shards, and the limits of both."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import Field

from clozeline.params.schema import Count, Fraction, Section, Share, at_most, set_for, sum_below_one
from clozeline.system.errors import without_secrets

# Kinds of source whose text is at `path`, or at `url` in its place.
PATH_OR_URL = ("files", "wikipedia-xml")
_WITH_URL = (*PATH_OR_URL, "sql")


def _is_a_url_without_secrets(url: str | None) -> bool:
    return url is None or ("://" in url and "\n" not in url and without_secrets(url) == url)


class SourceParams(Section):
    kind: Literal["python-docs", "files", "wikipedia-xml", "hub", "sql"]
    # Path that DVC watches: the local source, or for other sources a file that fixes them as far as a file can.
    path: str
    # Remote files, or the database. DVC does not watch it.
    url: str | None
    query: str | None
    pattern: str
    # Plain text only: other formats mark the end of a document themselves.
    one_document_per: Literal["paragraph", "line", "file"]
    text_field: str
    label_field: str | None
    dataset: str | None
    subset: str | None
    revision: str | None
    rules = (
        ("kind dataset", set_for("hub"), "set `dataset` for kind `hub`, and leave it null for any other"),
        ("kind query", set_for("sql"), "set `query` for kind `sql`, and leave it null for any other"),
        (
            "kind url",
            lambda kind, url: kind in _WITH_URL if url else kind != "sql",
            f"a `url` for kind `sql`; it may be set for {', '.join(_WITH_URL)}, and for no other",
        ),
        (
            "url",
            _is_a_url_without_secrets,
            "protocol://…, without password, key, token or signature, which the environment holds (docs/own-text.md)",
        ),
    )

    @property
    def place(self) -> str:
        """Location of the source, for messages and to recognize it again."""
        return self.dataset or self.url or self.path

    @property
    def is_watched(self) -> bool:
        """Whether DVC notices a change of the source by itself."""
        is_pinned = self.revision is not None and re.fullmatch("[0-9a-f]{40}", self.revision) is not None
        return self.url is None and (self.kind != "hub" or is_pinned)


# Knobs of a source that a local file leaves null.
UNSET_SOURCE: Mapping[str, None] = {
    name: None for name, field in SourceParams.model_fields.items() if type(None) in get_args(field.annotation)
}


class PreprocessParams(Section):
    source: SourceParams
    # JSON Lines, CSV, Parquet, plain text: what becomes of a record that cannot be read.
    on_bad_record: Literal["stop", "quarantine"]
    min_characters: Count
    max_characters: Count
    min_words: Count | None
    max_words: Count | None
    near_duplicate_similarity: Fraction
    same_side_similarity: Fraction
    validation_fraction: Fraction
    holdout_fraction: Annotated[float, Field(ge=0, lt=1)]
    rules = (
        ("min_characters max_characters", at_most, "`min_characters` not above `max_characters`, or no text passes"),
        ("min_words max_words", at_most, "`min_words` not above `max_words`, or no text passes"),
        ("same_side_similarity near_duplicate_similarity", at_most, "not above `near_duplicate_similarity`"),
        ("validation_fraction holdout_fraction", sum_below_one, "a sum below 1: the rest is the training split"),
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


class ContractParams(Section):
    """Limits of the data of a training, most of them beside those of the last accepted training."""

    min_documents: Count
    max_documents: Count | None
    max_missing_share: Share  # largest share of the accepted number of documents that may be missing
    # Upper limit of the share of previously accepted test rows that are missing or have other labels.
    max_changed_test_rows: Share
