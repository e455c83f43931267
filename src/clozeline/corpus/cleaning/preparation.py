"""Work of a worker on a batch of raw units: extract, clean, cut, filter by length, key by content, sketch.

Clean text has one Unicode form, no entities, no control characters, and plain white space. Sketches are columns beside
the texts, so that they are sorted, written and kept with them. Arrow files are read without copying: memory stays with
the kernel, which can drop it.

A batch is prepared by a worker or kept from an earlier run; its key is a digest of its units and of all else that
decides what becomes of them.
"""

import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import ftfy
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clozeline.cluster.ledger import Done, Item, Ledger
from clozeline.corpus.cleaning.documents import BadRecord, Document, DropReason, RawText, RawUnit
from clozeline.corpus.cleaning.portions import CutBatch, ReadText, cut_batches, units_of
from clozeline.params.text import PreprocessParams
from clozeline.records import clean_text, snapshot
from clozeline.records.reading.streams import KEY_BYTES, content_key
from clozeline.records.words.shingles import Banding, ShingleSets, shingle_sets
from clozeline.system.files import code_of, fingerprint, versions_of

# ASCII without `&` and control characters: ftfy has nothing to do.
_PLAIN = re.compile(r"[\t\n\x20-\x25\x27-\x7e]*")
# Lines with other characters. ftfy works line by line and is slow, so it gets only these.
_ODD_LINE = re.compile(r"^.*[^\t\n\x20-\x25\x27-\x7e].*\n?", re.MULTILINE)
_NEWLINES = re.compile(r"\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"
)
# Lone surrogates, left by cutting a text inside an emoji; they have no UTF-8.
_HALVES = re.compile("[\ud800-\udfff]")
# Kind of character that cleaning removes (or replaces, a lone surrogate by `?`) → its pattern.
ALTERATIONS: Mapping[str, re.Pattern[str]] = {
    "lone_surrogates": _HALVES,
    "nul": re.compile("\x00"),
    "control_characters": re.compile("[\x01-\x08\x0e-\x1b\x1f\x7f]"),
    "zero_width": re.compile("[\u00ad\u200b\u2060-\u2064\ufeff]"),
    "direction_marks": re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]"),
}
_ALTERED = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\ud800-\udfff]"
)
_WIDE_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_INNER_BLANKS = re.compile(r"(?<=\S)[ \t]+")
# Ten times as fast for text without tabs, because it stops at two spaces instead of at each.
_INNER_SPACES = re.compile(r"  (?<=\S  ) *")
_LINE_ENDS = re.compile(r"[ \t]+$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{3,}")
_WORD = re.compile(r"\S+")
_BREAKS = ("\n\n", "\n", ". ", " ")

_WITHOUT_ENTITIES = ftfy.TextFixerConfig(
    unescape_html=False,
    uncurl_quotes=False,  # keep the author's typography
    fix_latin_ligatures=False,
    fix_character_width=False,
    normalization="NFC",
    explain=False,
)
_WITH_ENTITIES = _WITHOUT_ENTITIES._replace(unescape_html=True)

_SHINGLES, _BANDS = "shingles", "bands"
_SKETCH_BYTES = 400_000

# Letters of an alphabet that say about as much as one Han, Kana or Hangul character.
_LETTERS_OF_WIDE = 3

# `ordinal`: index of the text in the source. `parent`: ordinal of the first part of the document it was cut from.
PREPARED = pa.schema(
    [
        ("key", pa.binary(KEY_BYTES)),
        ("ordinal", pa.int64()),
        ("parent", pa.int64()),
        *(clean_text.SCHEMA.field(name) for name in (clean_text.TEXT, clean_text.SOURCE, clean_text.TITLE)),
    ]
)

_Row = tuple[bytes, int, int, str, str, str]

_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)

_DECISIVE_PACKAGES = ("ftfy", "mwparserfromhell", "numpy", "orjson", "pyarrow", "rensa")
# Folders and files of the package that decide a prepared batch.
_CODE = ("corpus/cleaning", "records/clean_text.py", "records/reading", "records/words")
_TEXTS = "texts.arrow"


def clean(text: str, *, decode_entities: bool) -> str:
    """Return `text` in Unicode NFC with mojibake, entities, control characters and odd white space repaired.

    Indentation and single blank lines stay, because code and lists need them. Other runs of spaces become one space.
    """
    if not _PLAIN.fullmatch(text):
        text = _HALVES.sub("?", text)
        config = _WITH_ENTITIES if decode_entities else _WITHOUT_ENTITIES
        text = _ODD_LINE.sub(lambda line: ftfy.fix_text(line[0], config), text)
        text = _NEWLINES.sub("\n", text)
        text = _INVISIBLE.sub("", text)
        text = _WIDE_SPACES.sub(" ", text)
    return _with_plain_blanks(text)


def alterations(text: str) -> Iterator[str]:
    """Yield the kinds of characters in a raw `text` that cleaning does not leave in it."""
    if _ALTERED.search(text):
        yield from (kind for kind, pattern in ALTERATIONS.items() if pattern.search(text))


def _with_plain_blanks(text: str) -> str:
    """Normalize white space. Most texts need only some of the steps, and the checks are much cheaper than the steps."""
    text = (_INNER_BLANKS if "\t" in text else _INNER_SPACES).sub(" ", text)
    if " \n" in text or "\t\n" in text:
        text = _LINE_ENDS.sub("", text)
    if "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return text.strip()


def split_long(text: str, max_characters: int, max_words: int | None = None) -> list[str]:
    """Cut a text into parts of at most `max_characters` and `max_words`, between paragraphs, else lines, sentences,
    words, letters.
    """
    parts = []
    while (most := min(max_characters, _end_of_words(text, max_words))) < len(text):
        end = _last_break(text, most)
        parts.append(text[:end].rstrip())
        text = text[end:].lstrip()
    return [*parts, text] if text else parts


def _end_of_words(text: str, max_words: int | None) -> int:
    """Return the end of the last permitted word and of the white space after it."""
    if max_words is None:
        return len(text)
    following = next(islice(_WORD.finditer(text), max_words, None), None)
    return following.start() if following else len(text)


def _last_break(text: str, max_characters: int) -> int:
    """Return the position of the cut: the best kind of break that still leaves the part at least half full."""
    for mark in _BREAKS:
        place = text.rfind(mark, max_characters // 2, max_characters)
        if place > 0:
            return place + len(mark)
    return max_characters


def with_sketches(texts: pa.RecordBatch, banding: Banding) -> pa.RecordBatch:
    """Return `texts` with the columns of their sketches."""
    sets = [shingle_sets(part, banding) for part in _parts(texts.column(clean_text.TEXT))]
    hashes = [np.zeros(0, np.uint32), *(some.hashes_S for some in sets)]
    counts = [np.zeros(1, np.int64), *(some.counts_N for some in sets)]
    bands = [np.zeros(0, np.uint64), *(some.bands_NB.ravel() for some in sets)]
    offsets = pa.array(np.cumsum(np.concatenate(counts)), pa.int32())
    band_offsets = pa.array(np.arange(len(texts) + 1) * banding.num_bands, pa.int32())
    shingle_column = pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(hashes)))
    band_column = pa.ListArray.from_arrays(band_offsets, pa.array(np.concatenate(bands)))
    return texts.append_column(_SHINGLES, shingle_column).append_column(_BANDS, band_column)


def without_sketches(texts: pa.Table) -> pa.Table:
    return texts.drop_columns([_SHINGLES, _BANDS])


def sketches_of(texts: pa.Table) -> ShingleSets:
    """Return the sketches of `texts` from their columns."""
    shingles, bands = (pa.concat_arrays(texts[name].chunks) for name in (_SHINGLES, _BANDS))
    return ShingleSets(
        hashes_S=shingles.flatten().to_numpy(),
        counts_N=pc.list_value_length(shingles).to_numpy().astype(np.int64),
        bands_NB=bands.flatten().to_numpy().reshape(len(texts), -1),
    )


def _parts(column: Any) -> Iterator[Any]:
    """Cut a column into parts of about `_SKETCH_BYTES`."""
    number_N = np.cumsum(pc.binary_length(column).to_numpy()) // _SKETCH_BYTES
    bounds = [0, *(np.flatnonzero(np.diff(number_N)) + 1).tolist(), len(column)]
    return (column.slice(start, end - start) for start, end in pairwise(bounds) if end > start)


@dataclass(frozen=True)
class PreparationSettings:
    """Settings of a worker: the knobs of these names, and what else decides a text. The params themselves would make
    each worker import pydantic."""

    min_characters: int
    max_characters: int
    decode_entities: bool
    banding: Banding
    min_words: int | None = None
    max_words: int | None = None
    forgotten: snapshot.Forgotten = snapshot.NOTHING

    @classmethod
    def of(cls, params: PreprocessParams, forgotten: snapshot.Forgotten, *, decode_entities: bool) -> Self:
        knobs = {name: value for name, value in params if name in cls.__dataclass_fields__}
        banding = Banding.finding(params.same_side_similarity)
        return cls(**knobs, decode_entities=decode_entities, banding=banding, forgotten=forgotten)


@dataclass
class BatchCounts:
    num_ordinals: int = 0
    num_read: int = 0
    num_split: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    # Kind of character that cleaning removed (`ALTERATIONS`) → number of documents.
    altered: Counter[str] = field(default_factory=Counter)
    bad: list[BadRecord] = field(default_factory=list)


def prepare(units: Sequence[RawUnit], settings: PreparationSettings) -> tuple[pa.RecordBatch, BatchCounts]:
    """Return the clean texts of raw units, sorted by key: columns of `PREPARED` and their sketches.

    `ordinal` and `parent` count from the start of this batch.
    """
    rows: list[_Row] = []
    counts = BatchCounts()
    for unit in units:
        for document in unit.documents():
            rows += _rows_of(document, settings, counts)
    rows.sort(key=itemgetter(0))
    columns = list(zip(*rows, strict=True)) or [()] * len(PREPARED)
    texts = pa.record_batch(
        [pa.array(column, kind) for column, kind in zip(columns, PREPARED.types, strict=True)], PREPARED
    )
    return with_sketches(texts, settings.banding), counts


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


def write_texts(path: Path, tables: Iterable[pa.Table], compression: str | None = None) -> None:
    """Write each of the tables, of which there is at least one, as one record batch."""
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    writer = None
    for table in tables:
        if writer is None:
            writer = pa.ipc.new_file(str(path), table.schema, options=options)
        for batch in table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]:
            writer.write_batch(batch)
    assert writer is not None
    writer.close()


def read_texts(path: Path, parts: Sequence[int] | None = None) -> pa.Table:
    """Return the texts of a file, or of these record batches of it."""
    file = pa.ipc.open_file(pa.memory_map(str(path)), options=_READ_OPTIONS)
    numbers = range(file.num_record_batches) if parts is None else parts
    return pa.Table.from_batches([file.get_batch(number) for number in numbers], file.schema)


def versions_used() -> dict[str, str]:
    """Return the versions of the packages that decide the text besides the source and the params."""
    return versions_of(_DECISIVE_PACKAGES)


@dataclass(frozen=True)
class BatchRecord:
    """A batch that is done: its counts, and the file of its texts."""

    key: str
    texts: Path
    text_bytes: int  # size of the texts in memory, with their sketches
    stored_bytes: int  # size in the source, as it is stored
    is_found: bool
    counts: BatchCounts


def code_of_batches(settings: PreparationSettings) -> str:
    """Return a fingerprint of the code, the packages and the settings that decide a text."""
    return fingerprint(asdict(settings) | versions_used(), code_of(_CODE))


def prepared(raw: RawText, settings: PreparationSettings, ledger: Ledger, read: ReadText) -> Iterator[BatchRecord]:
    """Yield the batches in the order of the text; each is computed only if no earlier run kept it.

    Later portions are cut while the batches of earlier ones are prepared.

    Raises:
        DataError: the text is damaged, or not of its kind.
    """
    cut: deque[CutBatch] = deque()
    for record in ledger.run(_items(raw, settings, ledger, read, cut), read=()):
        batch = cut.popleft()
        text_bytes, facts = record.facts
        counted = {name: Counter(facts[name]) for name in ("dropped", "altered")}
        counts = BatchCounts(**facts | counted | {"bad": [BadRecord(**one) for one in facts["bad"]]})
        texts = record.folder / _TEXTS
        yield BatchRecord(record.key, texts, text_bytes, batch.stored_bytes, record.is_found, counts)
        if batch.frees:
            ledger.drop(batch.frees)


def _items(
    raw: RawText, settings: PreparationSettings, ledger: Ledger, read: ReadText, cut: deque[CutBatch]
) -> Iterator[Item]:
    """Yield the batches to prepare, and note each in `cut`."""
    for number, batch in enumerate(cut_batches(raw.files, raw.reading, ledger, read)):
        cut.append(batch)
        yield Item(f"batch {number}", [batch.digest], [batch.path, *batch.raw], partial(_prepare, batch, settings))


def _prepare(batch: CutBatch, settings: PreparationSettings, folder: Path) -> Done:
    texts, counts = prepare(units_of(batch), settings)
    write_texts(folder / _TEXTS, [pa.Table.from_batches([texts])], compression="lz4")
    # The key does not tell at which lines bad records are.
    facts = vars(counts) | {"bad": [asdict(one) for one in counts.bad]}
    return Done([texts.nbytes, facts], lasting=not counts.bad)
