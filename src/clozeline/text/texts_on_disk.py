"""Texts in Arrow files, read without copying: memory stays with the kernel, which can drop it."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


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
