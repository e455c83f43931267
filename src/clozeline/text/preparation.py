"""Work of a worker on a batch of raw units: extract, clean, cut, filter by length, key by content, sketch."""

import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from clozeline.artifacts.preprocess.clean_text import SCHEMA, SOURCE, TEXT, TITLE
from clozeline.artifacts.snapshot.forgotten import NOTHING, Forgotten
from clozeline.records.files.identity import KEY_BYTES, content_key
from clozeline.text.cleaning import alterations, clean, split_long
from clozeline.text.documents import BadRecord, Document, DropReason, RawUnit
from clozeline.text.sketch_columns import with_sketches
from clozeline.words.shingles import Banding

_LETTERS_OF_WIDE = 3
"""Letters of an alphabet that say about as much as one Han, Kana or Hangul character."""

if TYPE_CHECKING:
    from clozeline.params import PreprocessParams

PREPARED = pa.schema(
    [
        ("key", pa.binary(KEY_BYTES)),
        ("ordinal", pa.int64()),
        ("parent", pa.int64()),
        *(SCHEMA.field(name) for name in (TEXT, SOURCE, TITLE)),
    ]
)
"""`ordinal`: index of the text in the source. `parent`: ordinal of the first part of the document it was cut from."""


@dataclass(frozen=True)
class PreparationSettings:
    """Settings of a worker. The params themselves would make each worker import pydantic."""

    min_characters: int
    max_characters: int
    decode_entities: bool
    banding: Banding
    min_words: int | None = None
    max_words: int | None = None
    forgotten: Forgotten = NOTHING

    @classmethod
    def of(cls, params: "PreprocessParams", forgotten: Forgotten, *, decode_entities: bool) -> Self:
        return cls(
            min_characters=params.min_characters,
            max_characters=params.max_characters,
            decode_entities=decode_entities,
            banding=Banding.finding(params.same_side_similarity),
            min_words=params.min_words,
            max_words=params.max_words,
            forgotten=forgotten,
        )


@dataclass(frozen=True)
class Batch:
    units: list[RawUnit]
    settings: PreparationSettings


@dataclass
class BatchCounts:
    num_ordinals: int = 0
    num_read: int = 0
    num_split: int = 0
    dropped: Counter[DropReason] = field(default_factory=Counter)
    altered: Counter[str] = field(default_factory=Counter)
    """Kind of character that cleaning removed (`ALTERATIONS`) → number of documents."""
    bad: list[BadRecord] = field(default_factory=list)


@dataclass(frozen=True)
class PreparedBatch:
    """Texts sorted by key: columns of `PREPARED` and their sketches. `ordinal` counts from the start of the batch."""

    texts: pa.RecordBatch
    counts: BatchCounts


_Row = tuple[bytes, int, int, str, str, str]


def prepare(batch: Batch) -> PreparedBatch:
    """Turn raw units into clean texts; `ordinal` and `parent` count from the start of this batch."""
    rows: list[_Row] = []
    counts = BatchCounts()
    for unit in batch.units:
        for document in unit.documents():
            rows += _rows_of(document, batch.settings, counts)
    rows.sort(key=itemgetter(0))
    columns = list(zip(*rows, strict=True)) or [()] * len(PREPARED)
    texts = pa.record_batch(
        [pa.array(column, kind) for column, kind in zip(columns, PREPARED.types, strict=True)], PREPARED
    )
    return PreparedBatch(with_sketches(texts, batch.settings.banding), counts)


def _rows_of(document: Document, settings: PreparationSettings, counts: BatchCounts) -> Iterator[_Row]:
    counts.num_read += 1
    counts.altered.update(alterations(document.text))
    if document.bad:
        counts.bad.append(document.bad)
    cleaned = clean(document.text, decode_entities=settings.decode_entities)
    text = settings.forgotten.cut(cleaned).strip()
    if document.dropped or not text:
        counts.dropped[document.dropped or (DropReason.FORGOTTEN if cleaned else DropReason.EMPTY)] += 1
        counts.num_ordinals += 1
        return
    parts = split_long(text, settings.max_characters, settings.max_words)
    counts.num_split += len(parts) > 1
    parent = counts.num_ordinals
    for part in parts:
        if _is_short(part, settings):
            counts.dropped[DropReason.TOO_SHORT] += 1
        else:
            yield content_key(part), counts.num_ordinals, parent, part, document.source, document.title
        counts.num_ordinals += 1


def _is_short(text: str, settings: PreparationSettings) -> bool:
    if settings.min_words is not None and len(text.split()) < settings.min_words:
        return True
    return len(text) < settings.min_characters and _in_letters(text) < settings.min_characters


def _in_letters(text: str) -> int:
    """Return the length of `text`, with each wide character (UAX #11) counted as several letters."""
    return sum(_LETTERS_OF_WIDE if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
