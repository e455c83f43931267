"""Writer of clean text: one Parquet file for each split, with equal bytes for equal texts."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from clozeline.artifacts.preprocess.clean_text import SCHEMA, SOURCE, SPLITS, TEXT, file_of

_ROW_GROUP_BYTES = 2_000_000
_KEYS_A_STEP_BITS = 7
"""Row groups end between ranges of keys or between buckets. There are 2 to the power of this many ranges."""


@dataclass
class Part:
    """The file of a split, with the sizes of the texts in it."""

    writer: pq.ParquetWriter
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    documents: int = 0
    characters: int = 0
    bytes: int = 0
    sources: set[str] = field(default_factory=set)


class CleanWriter:
    """Writes `<split>.parquet` into a folder, with rows in the order of their keys, which is a shuffle."""

    def __init__(self, folder: Path) -> None:
        self._open = ExitStack()
        self.parts = {
            name: Part(
                self._open.enter_context(
                    pq.ParquetWriter(file_of(folder, name), SCHEMA, compression="zstd", use_dictionary=[SOURCE])
                )
            )
            for name in SPLITS
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            for part in self.parts.values():
                _flush(part)
        self._open.close()

    def append(self, texts: pa.Table, sides: NDArray[np.uint8]) -> None:
        """Write each text (columns of `PREPARED`, keys rising) to the split whose number `sides` holds."""
        keys = texts["key"].to_pylist()
        step_N = np.array([key[0] >> 8 - _KEYS_A_STEP_BITS for key in keys], dtype=np.int64)
        bounds = [0, *(np.flatnonzero(np.diff(step_N)) + 1).tolist(), len(keys)]
        doc_ids = pa.array([key.hex() for key in keys], pa.string())
        clean = pa.table([doc_ids, *(texts[name] for name in SCHEMA.names[1:])], SCHEMA)
        for start, end in pairwise(bounds):
            for side, part in enumerate(self.parts.values()):
                _append(part, clean.slice(start, end - start).filter(pa.array(sides[start:end] == side)))


def _append(part: Part, texts: pa.Table) -> None:
    if not len(texts):
        return
    part.documents += len(texts)
    part.characters += pc.sum(pc.utf8_length(texts[TEXT])).as_py()
    num_bytes = pc.sum(pc.binary_length(texts[TEXT])).as_py()
    part.bytes += num_bytes
    part.sources.update(texts[SOURCE].unique().to_pylist())
    part.waiting.append(texts)
    part.waiting_bytes += num_bytes
    if part.waiting_bytes >= _ROW_GROUP_BYTES:
        _flush(part)


def _flush(part: Part) -> None:
    if part.waiting:
        texts = pa.concat_tables(part.waiting).combine_chunks()
        part.writer.write_table(texts, row_group_size=len(texts))
        part.waiting, part.waiting_bytes = [], 0
