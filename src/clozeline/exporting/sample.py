"""The texts on which INT8 is compared with fp32."""

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

from clozeline.artifacts.finetune.model.held_out import HeldOut
from clozeline.errors import DataError


@dataclass(frozen=True)
class Sample:
    """Input for both graphs: texts in the order of their hashes, or held-out items of the task."""

    texts: Sequence[str]
    labels: Sequence[str | None]
    """Label of each text, where the file has one."""
    held_out: Sequence[HeldOut] = ()
    """Held-out items of the task with their labels; if there are any, they replace the texts."""

    def parted(self, num_deciding: int, num_calibrating: int) -> tuple[Self, Self]:
        """Split into the texts of the exam and disjoint ones for calibration of activation ranges.

        If there are too few texts, both parts shrink in the same proportion. A single text is in both parts; the
        caller logs that.
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
    """Return the `num_texts` distinct texts with the lowest hashes, a sample that does not depend on the row order.

    Their labels come from the column `label_field`; a text with two different labels gets none.

    Raises:
        DataError: the file is missing, damaged or without texts, or lacks the column `text` or `label_field`.
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
            f"{texts} holds no texts on which INT8 can be compared with fp32",
            given="no row with a text",
            expected="at least one text",
            do="give preprocess more text, or raise `validation_fraction`",
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
        f"{texts} holds no texts on which INT8 can be compared with fp32",
        given=given,
        expected="a Parquet file with the column `text`, and with the column that `label_field` names, if any",
        do="run `dvc repro preprocess`, or correct `texts` of the stage in dvc.yaml or `label_field`",
    )


def _fault(texts: Path, columns: Sequence[str]) -> str | None:
    if not texts.is_file():
        return "no such file"
    try:
        found = pq.read_schema(texts)
    except ArrowInvalid as error:
        return f"not a Parquet file: {error}"
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
        if getattr(error, "errno", None) is not None:  # a fault of the disk, not of the file
            raise
        raise _unusable(path, f"damaged rows: {error}") from error
