"""From encoded partitions to token shards: the lengths of all documents decide where each shard begins, then each shard
is put together by itself.

Shapes: D documents, N their tokens.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from clozeline.storage.fingerprints import sha256_of
from clozeline.tokenizing.partitions import Spread
from clozeline.tokens.info import ShardInfo, ShardPaths, SplitInfo

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class EncodedFiles:
    """Files of an encoded partition: its tokens, and two numbers of each document."""

    stem: Path
    dtype: Literal["uint16", "uint32"]

    @property
    def tokens(self) -> Path:
        return self.stem.with_suffix(".tokens")

    @property
    def documents(self) -> Path:
        return self.stem.with_suffix(".documents.npy")

    def lengths_and_bytes(self) -> npt.NDArray[np.uint32]:
        """Return the number of tokens and the bytes of text of each document: [2, D], a view of the file."""
        found: npt.NDArray[np.uint32] = np.load(self.documents, mmap_mode="r", allow_pickle=False)
        return found


class EncodedWriter:
    """Writes the files of a partition, document by document; memory holds two numbers of each."""

    def __init__(self, files: EncodedFiles) -> None:
        self._files = files
        self._dtype = np.dtype(files.dtype).newbyteorder("<")
        self._documents = [np.zeros((2, 0), np.uint32)]

    def __enter__(self) -> Self:
        self._tokens = self._files.tokens.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tokens.close()
        if kind is None:
            np.save(self._files.documents, np.concatenate(self._documents, axis=1), allow_pickle=False)

    def append(self, tokens_N: npt.NDArray[Any], lengths_D: npt.NDArray[Any], text_bytes_D: npt.NDArray[Any]) -> None:
        """Add documents given back to back: `lengths_D` tokens and `text_bytes_D` UTF-8 bytes of each."""
        assert not len(tokens_N) or int(tokens_N.max()) <= np.iinfo(self._dtype).max, "an id does not fit"
        self._tokens.write(np.ascontiguousarray(tokens_N, self._dtype).data)
        self._documents.append(np.stack([lengths_D, text_bytes_D]).astype(np.uint32))


@dataclass(frozen=True)
class Piece:
    """Documents of one partition in one shard, with their tokens."""

    files: EncodedFiles
    documents: slice
    tokens: slice

    @property
    def num_documents(self) -> int:
        return int(self.documents.stop - self.documents.start)

    @property
    def num_tokens(self) -> int:
        return int(self.tokens.stop - self.tokens.start)


@dataclass(frozen=True)
class Shard:
    paths: ShardPaths
    pieces: Sequence[Piece]


def write_shards(
    partitions: Iterable[EncodedFiles], folder: Path, split: str, shard_tokens: int, spread: Spread = map
) -> SplitInfo:
    """Write the documents of `partitions` as the shards of a split.

    A shard is closed before the document that would take it above `shard_tokens`, so a longer document has a shard of
    its own. The bytes depend neither on the partitions nor on `spread`.
    """
    pieces = _pieces_of_shards(partitions, shard_tokens)
    shards = [Shard(ShardPaths.of(folder, split, ordinal), here) for ordinal, here in enumerate(pieces)]
    done = tuple(spread(write_shard, shards))
    return SplitInfo(
        num_documents=sum(shard.num_documents for shard in done),
        num_tokens=sum(shard.num_tokens for shard in done),
        text_bytes=sum(shard.text_bytes for shard in done),
        shards=done,
    )


def write_shard(shard: Shard) -> ShardInfo:
    """Write the files of a shard."""
    digest = hashlib.sha256()
    with shard.paths.tokens.open("wb") as file:
        for piece in shard.pieces:
            with piece.files.tokens.open("rb") as source:
                width = np.dtype(piece.files.dtype).itemsize
                source.seek(piece.tokens.start * width)
                left = piece.num_tokens * width
                while chunk := source.read(min(left, _CHUNK_BYTES)):
                    file.write(chunk)
                    digest.update(chunk)
                    left -= len(chunk)
                assert not left, piece
    lengths_D, text_bytes_D = np.concatenate(
        [piece.files.lengths_and_bytes()[:, piece.documents] for piece in shard.pieces], axis=1
    )
    offsets = np.concatenate([np.zeros(1, np.uint64), np.cumsum(lengths_D, dtype=np.uint64)])
    return ShardInfo(
        num_documents=len(lengths_D),
        num_tokens=int(offsets[-1]),
        text_bytes=int(text_bytes_D.sum(dtype=np.uint64)),
        tokens_sha256=digest.hexdigest(),
        offsets_sha256=_save(shard.paths.offsets, offsets),
        bytes_sha256=_save(shard.paths.document_bytes, text_bytes_D),
    )


def _pieces_of_shards(partitions: Iterable[EncodedFiles], shard_tokens: int) -> list[list[Piece]]:
    shards: list[list[Piece]] = []
    num_tokens = shard_tokens + 1  # no shard is open
    for files in partitions:
        ends_D = np.cumsum(files.lengths_and_bytes()[0], dtype=np.int64)
        first, start = 0, 0
        while first < len(ends_D):
            last = int(np.searchsorted(ends_D, start + shard_tokens - num_tokens, side="right"))
            if last <= first:
                shards.append([])
                num_tokens = 0
                last = max(int(np.searchsorted(ends_D, start + shard_tokens, side="right")), first + 1)
            stop = int(ends_D[last - 1])
            shards[-1].append(Piece(files, slice(first, last), slice(start, stop)))
            num_tokens += stop - start
            first, start = last, stop
    return shards


def _save(path: Path, array: npt.NDArray[Any]) -> str:
    np.save(path, array, allow_pickle=False)
    return sha256_of(path)
