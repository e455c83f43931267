"""Docstrings of a snapshot as documents."""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from clozeline.records.files.json_values import parsed
from clozeline.records.files.meter import Meter
from clozeline.records.files.streams import Block, read_blocks
from clozeline.text.documents import Document, DropReason, RawUnit, Source
from clozeline.text.raw_files import RawFile, Reading, total_bytes_of


@dataclass(frozen=True, slots=True)
class DocstringBlock:
    """Lines of a shard, which a worker parses."""

    block: Block

    @property
    def size_bytes(self) -> int:
        return len(self.block.content)

    def identity(self) -> bytes:
        return pickle.dumps((self.block.content, self.block.first_line == 1))

    def documents(self) -> Iterator[Document]:
        for line in self.block.lines():
            if line:
                record = parsed(line)
                dropped = DropReason.UNREADABLE if record.get("unreadable") else None
                yield Document(record["text"], record["source"], record["title"], dropped)


def read_docstrings(files: Sequence[RawFile], reading: Reading) -> Source:
    """Open shards of docstrings; `reading` has nothing for them."""
    meter = Meter()
    return Source(
        units=(unit for file in files for unit in _blocks(file, meter)),
        total_bytes=total_bytes_of(files),
        meter=meter,
    )


def _blocks(file: RawFile, meter: Meter) -> Iterator[RawUnit]:
    with closing(read_blocks(file.path, meter)) as blocks:
        yield from map(DocstringBlock, blocks)
