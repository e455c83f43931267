"""From partitions of clean text to token shards.

A partition is a run of row groups of a file, and each is a task. The content of the files decides them, never the
number of workers. The lengths of all encoded documents decide where each shard begins; then each shard is put together
by itself.

Shapes: D documents, N their tokens.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clozeline.cluster.ledger import Done, Item, Ledger
from clozeline.cluster.store import RECORD
from clozeline.records.clean_text import TEXT, RowGroup, columns_of, files_in, row_groups
from clozeline.records.reading.tokens import ShardInfo, ShardPaths, SplitInfo
from clozeline.system.files import link_or_copy, sha256_of

_CHUNK_BYTES = 1 << 20
# In the name of a shard's files as its task writes them.
_SPLIT = "any"

# Least size of a partition in bytes of text: large beside the two row groups that a process reads anyway.
_PARTITION_BYTES = 8_000_000


@dataclass(frozen=True)
class EncodedFiles:
    """Files of an encoded partition: its tokens, three numbers of each document, and digests of the texts."""

    folder: Path  # named by a digest of all that decides the files
    dtype: str  # type of a token: uint16 or uint32

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.bin"

    @property
    def documents(self) -> Path:
        return self.folder / "documents.npy"

    @property
    def digests(self) -> Path:
        return self.folder / "digests.bin"

    @property
    def recorded(self) -> tuple[Path, ...]:
        """Files that other tasks read, with their record."""
        return self.folder / RECORD, self.tokens, self.documents, self.digests

    def columns(self) -> npt.NDArray[np.uint32]:
        """Return tokens, bytes of text and dropped tokens of each document: [3, D], a view of the file."""
        found: npt.NDArray[np.uint32] = np.load(self.documents, mmap_mode="r", allow_pickle=False)
        return found

    def all_tokens(self) -> npt.NDArray[Any]:
        return np.fromfile(self.tokens, np.dtype(self.dtype).newbyteorder("<"))


# Adds documents: their tokens back to back; tokens, UTF-8 bytes of text and dropped tokens of each; and digests.
Append = Callable[[npt.NDArray[Any], Sequence[npt.NDArray[Any]], Sequence[bytes]], None]


@contextmanager
def writing(files: EncodedFiles) -> Iterator[Append]:
    """Write the files of a partition, document by document; memory holds three numbers of each."""
    dtype = np.dtype(files.dtype).newbyteorder("<")
    documents = [np.zeros((3, 0), np.uint32)]
    with files.tokens.open("wb") as tokens, files.digests.open("wb") as all_digests:

        def append(tokens_N: npt.NDArray[Any], numbers: Sequence[npt.NDArray[Any]], digests: Sequence[bytes]) -> None:
            assert not len(tokens_N) or int(tokens_N.max()) <= np.iinfo(dtype).max, "an id does not fit"
            tokens.write(np.ascontiguousarray(tokens_N, dtype).data)
            all_digests.write(b"".join(digests))
            documents.append(np.stack(numbers).astype(np.uint32))

        yield append
    np.save(files.documents, np.concatenate(documents, axis=1), allow_pickle=False)


@dataclass(frozen=True)
class ShardPiece:
    """Documents of one partition in one shard, with their tokens."""

    files: EncodedFiles
    documents: slice
    tokens: slice

    @property
    def num_tokens(self) -> int:
        return int(self.tokens.stop - self.tokens.start)


def write_shards(
    partitions: Iterable[EncodedFiles], folder: Path, split: str, shard_tokens: int, ledger: Ledger
) -> SplitInfo:
    """Write the documents of `partitions` as the shards of a split.

    A shard is closed before the document that would take it above `shard_tokens`, so a longer document has a shard of
    its own. The bytes depend neither on the partitions nor on the workers of `ledger`.
    """
    pieces = _pieces_of_shards(partitions, shard_tokens)
    items = [_shard_item(f"shard {ordinal} of {split}", here) for ordinal, here in enumerate(pieces)]
    done = []
    for ordinal, record in enumerate(ledger.run_all(items, f"write shards of {split}")):
        made, wanted = ShardPaths.of(record.folder, _SPLIT, 0), ShardPaths.of(folder, split, ordinal)
        link_or_copy(made.tokens, wanted.tokens)
        link_or_copy(made.offsets, wanted.offsets)
        link_or_copy(made.document_bytes, wanted.document_bytes)
        done.append(ShardInfo.model_validate(record.facts))
    return SplitInfo(
        num_documents=sum(shard.num_documents for shard in done),
        num_tokens=sum(shard.num_tokens for shard in done),
        text_bytes=sum(shard.text_bytes for shard in done),
        shards=tuple(done),
    )


def _shard_item(name: str, pieces: Sequence[ShardPiece]) -> Item:
    inputs = [[piece.files.folder.name, piece.documents.start, piece.documents.stop] for piece in pieces]
    reads = [path for piece in pieces for path in (piece.files.tokens, piece.files.documents)]
    return Item(name, inputs, reads, partial(write_shard, pieces))


def write_shard(pieces: Sequence[ShardPiece], folder: Path) -> Done:
    """Write the files of a shard; the facts are its `ShardInfo`."""
    digest = hashlib.sha256()
    paths = ShardPaths.of(folder, _SPLIT, 0)
    with paths.tokens.open("wb") as file:
        for piece in pieces:
            with piece.files.tokens.open("rb") as source:
                width = np.dtype(piece.files.dtype).itemsize
                source.seek(piece.tokens.start * width)
                left = piece.num_tokens * width
                while chunk := source.read(min(left, _CHUNK_BYTES)):
                    file.write(chunk)
                    digest.update(chunk)
                    left -= len(chunk)
                assert not left, piece
    lengths_D, text_bytes_D = np.concatenate([piece.files.columns()[:2, piece.documents] for piece in pieces], axis=1)
    offsets = np.concatenate([np.zeros(1, np.uint64), np.cumsum(lengths_D, dtype=np.uint64)])
    info = ShardInfo(
        num_documents=len(lengths_D),
        num_tokens=int(offsets[-1]),
        text_bytes=int(text_bytes_D.sum(dtype=np.uint64)),
        tokens_sha256=digest.hexdigest(),
        offsets_sha256=_save(paths.offsets, offsets),
        bytes_sha256=_save(paths.document_bytes, text_bytes_D),
    )
    return Done(info.model_dump())


def _pieces_of_shards(partitions: Iterable[EncodedFiles], shard_tokens: int) -> list[list[ShardPiece]]:
    shards: list[list[ShardPiece]] = []
    num_tokens = shard_tokens + 1  # no shard is open
    for files in partitions:
        ends_D = np.cumsum(files.columns()[0], dtype=np.int64)
        first, start = 0, 0
        while first < len(ends_D):
            last = int(np.searchsorted(ends_D, start + shard_tokens - num_tokens, side="right"))
            if last <= first:
                shards.append([])
                num_tokens = 0
                last = max(int(np.searchsorted(ends_D, start + shard_tokens, side="right")), first + 1)
            stop = int(ends_D[last - 1])
            shards[-1].append(ShardPiece(files, slice(first, last), slice(start, stop)))
            num_tokens += stop - start
            first, start = last, stop
    return shards


def _save(path: Path, array: npt.NDArray[Any]) -> str:
    np.save(path, array, allow_pickle=False)
    return sha256_of(path)


@dataclass(frozen=True)
class Partition:
    path: Path
    groups: range
    num_rows: int
    text_bytes: int
    doc_ids: tuple[str, str] | None  # least and greatest `doc_id`; None if the file does not say
    digest: str  # of the texts, as the file stores them

    @property
    def reads(self) -> tuple[Path, ...]:
        return (self.path,)

    def columns(self, *names: str) -> Iterator[list[Any]]:
        """Yield columns as `columns_of` does. Raises what `columns_of` raises."""
        return columns_of(self.path, *names, groups=self.groups)

    def texts(self) -> Iterator[list[str]]:
        """Yield the texts in batches. Raises what `columns_of` raises."""
        return (texts.to_pylist() for (texts,) in self.columns(TEXT))


def partitions_of(path: Path) -> list[Partition]:
    """Return the partitions of a split, in order.

    Raises:
        ArtifactError: a file is missing or damaged, or has no column of texts.
    """
    return [partition for file in files_in(path) for partition in _partitions_of_file(file)]


def _partitions_of_file(path: Path) -> list[Partition]:
    groups = row_groups(path)
    found, first, text_bytes = [], 0, 0
    for end, group in enumerate(groups, 1):
        text_bytes += group.text_bytes
        if text_bytes >= _PARTITION_BYTES or end == len(groups):
            found.append(_partition(path, range(first, end), groups[first:end]))
            first, text_bytes = end, 0
    return found


def _partition(path: Path, places: range, groups: list[RowGroup]) -> Partition:
    bounds = [bound for group in groups for bound in group.doc_ids or ()]
    return Partition(
        path,
        places,
        num_rows=sum(group.num_rows for group in groups),
        text_bytes=sum(group.text_bytes for group in groups),
        doc_ids=(min(bounds), max(bounds)) if len(bounds) == 2 * len(groups) else None,
        digest=hashlib.blake2b("".join(group.digest for group in groups).encode(), digest_size=16).hexdigest(),
    )
