"""Texts on disk between the steps of the stage, in buckets by content, so that memory does not grow with the corpus."""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from clozeline.text.preparation import PREPARED, PreparedBatch

_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


class BucketWriter:
    """Appends prepared batches to one Arrow stream per bucket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self._open = ExitStack()
        self._num_ordinals = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def append(self, batch: PreparedBatch) -> None:
        """Number the batch's texts after all that were appended before, and write them to their buckets."""
        texts = batch.texts
        for name in ("ordinal", "parent"):
            place = texts.schema.get_field_index(name)
            texts = texts.set_column(place, PREPARED.field(name), pc.add(texts.column(place), self._num_ordinals))
        self._num_ordinals += batch.num_ordinals
        for bucket, (start, end) in enumerate(zip(batch.bucket_starts, batch.bucket_starts[1:], strict=False)):
            if end > start:
                self._stream(bucket).write_batch(texts.slice(start, end - start))

    def _stream(self, bucket: int) -> pa.ipc.RecordBatchStreamWriter:
        if bucket not in self._streams:
            self._streams[bucket] = self._open.enter_context(
                pa.ipc.new_stream(bucket_path(self._folder, bucket), PREPARED, options=_WRITE_OPTIONS)
            )
        return self._streams[bucket]


def bucket_path(folder: Path, bucket: int) -> Path:
    return folder / f"bucket-{bucket:03d}.arrow"


def bucket_files(folder: Path) -> list[Path]:
    """The buckets that hold anything, in order."""
    return sorted(folder.glob("bucket-*.arrow"))


def read_bucket(path: Path) -> pa.Table:
    with pa.ipc.open_stream(path, options=_READ_OPTIONS) as stream:
        return stream.read_all()


def write_bucket(path: Path, texts: pa.Table) -> None:
    with pa.ipc.new_stream(path, PREPARED, options=_WRITE_OPTIONS) as stream:
        stream.write_table(texts)
