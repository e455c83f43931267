"""The texts that INT8 is held against fp32 on."""

import hashlib
import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowInvalid

from clozeline.artifacts.held_out import HeldOut
from clozeline.errors import DataError


@dataclass(frozen=True)
class Sample:
    """What both graphs are asked: texts in the order of their hashes, or items of the task that a training held out."""

    texts: Sequence[str]
    labels: Sequence[str | None]
    """Of each text, where the file has one."""
    held_out: Sequence[HeldOut] = ()
    """Of the task itself, with what is right, where its training left some: they are asked instead of the texts."""

    def parted(self, num_deciding: int, num_calibrating: int) -> tuple[Self, Self]:
        """The texts that decide, and others that ranges of activations are measured on: no text is in both.

        Where there are too few, both have fewer, in the same proportion. A single text is in both, for there is no
        other; the caller says so.
        """
        num_texts = len(self.texts)
        scarcity = min(num_texts / (num_deciding + num_calibrating), 1.0)
        num_first = num_texts - min(math.ceil(scarcity * num_calibrating), num_texts - 1)
        ends = (0, num_first), (num_first if num_texts > 1 else 0, num_first + num_calibrating)
        first, second = (
            replace(self, texts=self.texts[start:end], labels=self.labels[start:end]) for start, end in ends
        )
        return first, second


def read_sample(texts: Path, num_texts: int, label_field: str | None = None) -> Sample:
    """The `num_texts` different texts with the lowest hashes: a sample that the order of the rows does not change.

    Their labels are those of the column `label_field`; a text that is there with two labels has none.

    Raises:
        DataError: there is no such file, no column `text` or `label_field`, no text in it, or it is damaged.
    """
    columns = ["text", *([label_field] if label_field else [])]
    _check_columns(texts, columns)
    labels: dict[bytes, set[str]] = {}
    distinct: dict[bytes, str] = {}
    for text, *label in _rows(texts, columns):
        digest = hashlib.sha256(text.encode()).digest()
        distinct[digest] = text
        labels.setdefault(digest, set()).update(str(name) for name in label if name is not None)
    if not distinct:
        raise DataError(
            f"{texts} gives no texts to compare INT8 and fp32 on",
            given="no row with a text",
            expected="at least one",
            do="give preprocess more text, or a larger `validation_fraction`",
        )
    chosen = heapq.nsmallest(num_texts, distinct)
    only = [labels[digest] for digest in chosen]
    return Sample(
        [distinct[digest] for digest in chosen], [next(iter(names)) if len(names) == 1 else None for names in only]
    )


def _check_columns(texts: Path, columns: Sequence[str]) -> None:
    given = _fault(texts, columns)
    if given:
        raise _unusable(texts, given)


def _unusable(texts: Path, given: str) -> DataError:
    return DataError(
        f"{texts} gives no texts to compare INT8 and fp32 on",
        given=given,
        expected="a Parquet file with the column `text`, and that of `export.label_field` if it names one",
        do="run `dvc repro preprocess`, or correct `texts` of the stage in dvc.yaml or `export.label_field`",
    )


def _fault(texts: Path, columns: Sequence[str]) -> str | None:
    if not texts.is_file():
        return "no such file"
    try:
        found = pq.read_schema(texts)
    except ArrowInvalid as error:
        return f"no Parquet file: {error}"
    missing = [column for column in columns if column not in found.names]
    if missing:
        return f"no column `{missing[0]}`"
    kind = found.field("text").type
    return None if _is_text(kind) else f"a column `text` of {kind}"


def _is_text(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value))


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=list(columns)):
                for row in zip(*(batch.column(column).to_pylist() for column in columns), strict=True):
                    if row[0]:
                        yield row
    except (ArrowInvalid, OSError, UnicodeDecodeError) as error:
        if getattr(error, "errno", None) is not None:  # the disk's, not the file's
            raise
        raise _unusable(path, f"damaged rows: {error}") from error
