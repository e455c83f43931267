"""data/clean, the texts of each split, and metrics/preprocess.json, the fate of every raw text.

A split is a Parquet file with a text in each row. Of much text, it is a folder of such files, each with a range of
keys.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOENT
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from clozeline.records.record import MetricFile, Record
from clozeline.system.errors import ArtifactError

SPLITS = ("train", "validation", "holdout")
DOC_ID, TEXT, SOURCE, TITLE = "doc_id", "text", "source", "title"
SCHEMA = pa.schema([(name, pa.string()) for name in (DOC_ID, TEXT, SOURCE, TITLE)])
# Large enough to spread the cost of a batch, small enough to hold one in memory; no result depends on it.
_ROWS_AT_A_TIME = 1024


def file_of(folder: Path, split: str) -> Path:
    """Return the file of a split in the folder of the clean text, or its folder of files."""
    return folder / f"{split}.parquet"


def files_in(path: Path) -> list[Path]:
    """Return the files of a split, in the order of their keys: `path` itself, unless it is a folder of files."""
    return sorted(path.glob("[!.]*.parquet")) or [path]


def num_rows(path: Path, *columns: str) -> int:
    """Return the number of rows of a split that has `columns`.

    Raises:
        ArtifactError: a file is missing or damaged, or lacks one of `columns`.
    """
    num_rows = 0
    for part in files_in(path):
        with _refusing_damage(part, columns), _opened(part, columns) as file:
            num_rows += file.metadata.num_rows
    return num_rows


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file, as the file's footer describes it."""

    num_rows: int
    text_bytes: int  # size of the texts before compression
    doc_ids: tuple[str, str] | None  # least and greatest `doc_id`; None if the file does not say
    digest: str  # of the texts, as the file stores them


def row_groups(path: Path) -> list[RowGroup]:
    """Return the row groups of a file with a column of texts, whose stored bytes are read once.

    Raises:
        ArtifactError: the file is missing or damaged, or has no texts.
    """
    with _refusing_damage(path, (TEXT,)), _opened(path, (TEXT,)) as file, path.open("rb") as stored:
        places = {file.schema.column(place).name: place for place in range(len(file.schema))}
        return [
            _row_group(file.metadata.row_group(number), places[TEXT], places.get(DOC_ID), stored)
            for number in range(file.num_row_groups)
        ]


def _row_group(group: Any, text: int, doc_id: int | None, stored: BinaryIO) -> RowGroup:
    statistics = group.column(doc_id).statistics if doc_id is not None else None
    bounds = (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None
    texts = group.column(text)
    return RowGroup(
        num_rows=group.num_rows,
        text_bytes=texts.total_uncompressed_size,
        doc_ids=bounds if bounds and isinstance(bounds[0], str) else None,
        digest=_digest(texts, stored),
    )


def _digest(column: Any, stored: BinaryIO) -> str:
    """Return a digest of a column of a row group: its bytes, and what the footer says of how to read them."""
    footer = (column.physical_type, column.compression, column.encodings, column.num_values)
    digest = blake2b(repr(footer).encode(), digest_size=16)
    stored.seek(min(filter(None, (column.dictionary_page_offset, column.data_page_offset))))
    digest.update(stored.read(column.total_compressed_size))
    return digest.hexdigest()


def columns_of(path: Path, *columns: str, groups: Iterable[int] | None = None) -> Iterator[list[Any]]:
    """Yield batches of rows of a split in order, each as one Arrow array for each of `columns`.

    Memory holds one row group. Text is an array of type `string`, however the file stores it. `groups`: the row groups
    to read of one file; all by default.

    Raises:
        ArtifactError: a file is missing or damaged, or lacks one of `columns`.
    """
    for part in files_in(path):
        yield from _columns_of_file(part, columns, groups)


def _columns_of_file(path: Path, columns: tuple[str, ...], groups: Iterable[int] | None) -> Iterator[list[Any]]:
    with _refusing_damage(path, columns), _opened(path, columns) as file:
        # A single reader for all row groups would keep what it has read of each until the end.
        for group in range(file.num_row_groups) if groups is None else groups:
            for batch in file.iter_batches(_ROWS_AT_A_TIME, [group], columns=list(columns), use_threads=False):
                found = [batch.column(name) for name in columns]
                arrays = [one.cast(pa.string()) if _is_text(one.type) else one for one in found]
                for array in arrays:
                    array.validate(full=True)
                yield arrays


def texts_of(path: Path) -> Iterator[list[str]]:
    """Yield the texts of a split in batches. Raises what `columns_of` raises."""
    return (texts.to_pylist() for (texts,) in columns_of(path, TEXT))


def _opened(path: Path, columns: tuple[str, ...]) -> Any:
    file = pq.ParquetFile(path)
    found = file.schema_arrow
    texts = {field.name for field in found if _is_text(field.type) or field.name not in SCHEMA.names}
    if not texts.issuperset(columns):
        file.close()
        raise _unusable(path, columns, f"columns {', '.join(f'{field.name} ({field.type})' for field in found)}")
    return file


def _is_text(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return value in (pa.string(), pa.large_string(), pa.string_view())


@contextmanager
def _refusing_damage(path: Path, columns: tuple[str, ...]) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        if getattr(error, "errno", None) not in (None, ENOENT):  # the disk failed, not the file
            raise
        raise _unusable(path, columns, error) from error


def _unusable(path: Path, columns: tuple[str, ...], given: object) -> ArtifactError:
    return ArtifactError(
        f"{path} is not a Parquet file with the columns {', '.join(columns)}: {given}",
        do="rebuild it (`dvc repro --force preprocess`), or correct the name of the file or of the column",
    )


class SplitMetrics(Record):
    documents: int
    characters: int
    bytes: int  # size of the text in UTF-8
    sources: int  # number of distinct labels


class SimilarityMetrics(Record):
    compared_pairs: int
    similar_pairs: int
    groups: int  # groups of two or more kept texts, which stay in one split
    grouped_documents: int
    largest_group: int
    full_groups: int  # groups of validation and holdout that take no more texts


class CorpusMetrics(MetricFile):
    """Counts of texts: `documents_in` = `kept` + every reason of `dropped`; `kept` = the documents of all splits."""

    documents_read: int
    documents_split: int  # documents longer than `max_characters`, which were cut into parts
    added_by_splitting: int
    documents_in: int
    kept: int
    dropped: Mapping[str, int]  # every reason, including those that did not occur → number of texts
    # Every kind of character that cleaning leaves out, such as `zero_width` → number of documents that had some.
    altered: Mapping[str, int] = Field(default_factory=dict)
    splits: Mapping[str, SplitMetrics]
    similarity: SimilarityMetrics
    versions: Mapping[str, str]  # versions of the packages that decide the text besides the source and the params

    @model_validator(mode="after")
    def _counts_add_up(self) -> Self:
        assert self.documents_in == self.documents_read + self.added_by_splitting
        assert self.documents_in == self.kept + sum(self.dropped.values()), (self.documents_in, self.kept, self.dropped)
        assert self.kept == sum(split.documents for split in self.splits.values())
        return self

    def summary(self) -> str:
        """Return a readable summary of a few lines."""
        lines = [
            f"{self.documents_in:,} texts in = {self.kept:,} kept + {dropped_in_words(self.dropped)}",
            f"{self.documents_split:,} documents were longer than max_characters and were cut into parts",
            f"{self.similarity.groups:,} groups of similar texts ({self.similarity.grouped_documents:,} texts, "
            f"the largest {self.similarity.largest_group:,}); each group stays in one split",
        ]
        if any(self.altered.values()):
            lines.insert(1, f"altered by cleaning: {in_words(self.altered)}")
        for name, split in self.splits.items():
            lines.append(f"{name}: {split.documents:,} texts, {split.bytes / 1e6:,.1f} MB, {split.sources:,} labels")
        return "\n".join(lines)


def dropped_in_words(dropped: Mapping[str, int]) -> str:
    """Return, for example, `3 empty, 5 too short`."""
    return in_words(dropped) or "none dropped"


def in_words(counts: Mapping[str, int]) -> str:
    """Return the counts above 0, for example `3 empty, 5 too short`."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
