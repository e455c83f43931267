"""Spool of texts on disk between the steps of a stage, in buckets by content; memory does not grow with the corpus."""

from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import pyarrow as pa
import pyarrow.compute as pc

from clozeline.text.buckets import bucket_starts
from clozeline.text.preparation import PREPARED, PreparedBatch

_WAITING_BYTES = 8_000_000
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(use_threads=False)
_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


class BucketWriter:
    """Appends prepared batches to one file per bucket.

    Each write is a complete Arrow stream, so no file stays open, however many buckets there are.
    """

    def __init__(self, folder: Path, num_buckets: int) -> None:
        self._folder = folder
        self._num_buckets = num_buckets
        self._waiting: list[tuple[pa.RecordBatch, list[int]]] = []
        self._waiting_bytes = 0
        self._num_ordinals = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()

    def append(self, batch: PreparedBatch) -> None:
        """Number the texts of the batch after all earlier ones, and write them to their buckets."""
        texts = batch.texts
        for name in ("ordinal", "parent"):
            place = texts.schema.get_field_index(name)
            texts = texts.set_column(place, PREPARED.field(name), pc.add(texts.column(place), self._num_ordinals))
        self._num_ordinals += batch.num_ordinals
        self._waiting.append((texts, bucket_starts(texts.column("key").to_pylist(), self._num_buckets)))
        self._waiting_bytes += texts.nbytes
        if self._waiting_bytes >= _WAITING_BYTES:
            self._flush()

    def _flush(self) -> None:
        for bucket in range(self._num_buckets if self._waiting else 0):
            parts = [
                texts.slice(starts[bucket], starts[bucket + 1] - starts[bucket]) for texts, starts in self._waiting
            ]
            bucket_texts = pa.Table.from_batches(parts).combine_chunks()
            if len(bucket_texts):
                _write(bucket_path(self._folder, bucket), bucket_texts, "ab")
        self._waiting, self._waiting_bytes = [], 0


def bucket_path(folder: Path, bucket: int) -> Path:
    return folder / f"bucket-{bucket:05d}.arrow"


def bucket_files(folder: Path) -> list[Path]:
    """Return the non-empty buckets in order."""
    return sorted(folder.glob("bucket-*.arrow"))


def read_bucket(path: Path) -> pa.Table:
    parts = []
    with pa.OSFile(str(path)) as file:
        while file.tell() < file.size():
            with pa.ipc.open_stream(file, options=_READ_OPTIONS) as stream:
                parts.append(stream.read_all())
    return pa.concat_tables(parts)


def write_bucket(path: Path, texts: pa.Table) -> None:
    _write(path, texts, "wb")


def _write(path: Path, texts: pa.Table, mode: Literal["ab", "wb"]) -> None:
    with path.open(mode) as file, pa.ipc.new_stream(file, texts.schema, options=_WRITE_OPTIONS) as stream:
        stream.write_table(texts)
