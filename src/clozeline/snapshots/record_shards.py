"""Records of a source that has no files, as shards of JSON Lines.

Shards of earlier snapshots keep the records that are still there; records that are new go into new shards. A table
that grew by a few rows therefore changes no earlier shard, in whatever order the source returns its rows.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from itertools import chain
from typing import Any

import pyarrow as pa

from clozeline.artifacts.snapshot.manifest import SnapshotFile
from clozeline.params import SourceParams
from clozeline.records.files.fields import Fields
from clozeline.snapshots.redaction import redacted_line
from clozeline.snapshots.store import Store

_SHARD_BYTES = 64_000_000
"""Size of a shard before compression, in bytes."""
_BLOCK_BYTES = 1 << 20
_KEY_BYTES = 16


def text_fields(params: SourceParams) -> Fields:
    """Return the knobs of text and label with the fields that they name."""
    label = {} if params.label_field is None else {"source.label_field": params.label_field}
    return {"source.text_field": params.text_field} | label


def line_of(record: dict[str, Any]) -> bytes:
    """Return a record as one line of JSON. Values that JSON lacks, such as dates, become text."""
    return json.dumps(record, default=str).encode() + b"\n"


def keep_records(lines: Iterable[bytes], store: Store) -> tuple[SnapshotFile, ...]:
    """Keep every line, in the order of the source where it has no earlier order."""
    if store.forgotten:
        lines = filter(None, (redacted_line(line, store.forgotten) for line in lines))
    earlier = store.earlier.files
    unseen = Counter(_key_of(line) for file in earlier for line in _lines_of(store, file))
    new = list(_keep_shards(_not_in(lines, unseen), store, store.earlier.number + 1))
    gone = +unseen
    return (*chain.from_iterable(_keep_rest(file, gone, store) for file in earlier), *new)


def keep_earlier_records(store: Store) -> tuple[SnapshotFile, ...]:
    """Keep the records of the earlier snapshot."""
    return keep_records((line for file in store.earlier.files for line in _lines_of(store, file)), store)


def _keep_rest(file: SnapshotFile, gone: Counter[bytes], store: Store) -> Iterator[SnapshotFile]:
    """Keep an earlier shard without its records in `gone`."""
    if not gone or not any(_key_of(line) in gone for line in _lines_of(store, file)):
        yield store.keep_earlier(file, file.name)
        return
    rest = list(_not_in(_lines_of(store, file), gone))
    if rest:
        kept = _keep_shard(iter(rest), store, file.name)
        yield kept.model_copy(update={"snapshot": file.snapshot})


def _not_in(lines: Iterable[bytes], counts: Counter[bytes]) -> Iterator[bytes]:
    """Yield the lines that `counts` does not hold, and take the others out of it, as often as each occurs."""
    for line in lines:
        key = _key_of(line)
        if counts[key] > 0:
            counts[key] -= 1
        else:
            yield line


def _keep_shards(lines: Iterator[bytes], store: Store, snapshot: int) -> Iterator[SnapshotFile]:
    for number, first in enumerate(lines, start=1):
        yield _keep_shard(chain([first], lines), store, f"{snapshot:06d}-{number:06d}.jsonl.zst")


def _keep_shard(lines: Iterator[bytes], store: Store, name: str) -> SnapshotFile:
    """Keep lines in one shard, up to its size."""
    records, size_bytes = 0, 0
    with store.incoming() as beside:
        with ExitStack() as opened:
            sink = opened.enter_context(pa.OSFile(str(beside), "wb"))
            stream = opened.enter_context(pa.CompressedOutputStream(sink, "zstd"))
            for line in lines:
                stream.write(line)
                records += 1
                size_bytes += len(line)
                if size_bytes >= _SHARD_BYTES:
                    break
        return store.keep(name, beside).model_copy(update={"records": records})


def _lines_of(store: Store, file: SnapshotFile) -> Iterator[bytes]:
    rest = b""
    with pa.OSFile(str(store.earlier.path_of(file))) as raw, pa.CompressedInputStream(raw, "zstd") as stream:
        while block := stream.read(_BLOCK_BYTES):
            *whole, rest = (rest + block).split(b"\n")
            yield from (line + b"\n" for line in whole)


def _key_of(line: bytes) -> bytes:
    return blake2b(line, digest_size=_KEY_BYTES).digest()
