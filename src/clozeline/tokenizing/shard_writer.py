"""Writer of token shards, document by document, in memory bounded by the lengths of one shard's documents.

Shapes: D documents of a batch, N their tokens.
"""

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from clozeline.storage.fingerprints import sha256_of
from clozeline.tokens.info import ShardInfo, ShardPaths, SplitInfo


class ShardWriter:
    """Appends documents to the shards of one split.

    A shard is closed before the document that would take it above `shard_tokens`, so a longer document has a shard of
    its own. The bytes do not depend on how the caller batches the documents.
    """

    def __init__(self, folder: Path, split: str, dtype: Literal["uint16", "uint32"], shard_tokens: int) -> None:
        self._folder = folder
        self._split = split
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._shard_tokens = shard_tokens
        self._done: list[ShardInfo] = []
        self._shard: _OpenShard | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shard:
            self._shard.file.close()

    def append(self, tokens_N: npt.NDArray[Any], lengths_D: npt.NDArray[Any], text_bytes_D: npt.NDArray[Any]) -> None:
        """Add documents given back to back: `lengths_D` tokens and `text_bytes_D` UTF-8 bytes of each."""
        ends_D = np.cumsum(lengths_D, dtype=np.int64)
        assert not len(tokens_N) or int(tokens_N.max()) <= np.iinfo(self._dtype).max
        tokens_N = tokens_N.astype(self._dtype, copy=False)
        first, start = 0, 0
        while first < len(lengths_D):
            shard = self._shard or self._open_shard()
            room = self._shard_tokens - shard.num_tokens
            last = int(np.searchsorted(ends_D, start + room, side="right"))
            if last <= first and shard.num_documents:
                self._close_shard()
                continue
            last = max(last, first + 1)
            stop = int(ends_D[last - 1])
            shard.append(tokens_N[start:stop], lengths_D[first:last], text_bytes_D[first:last])
            first, start = last, stop

    def finish(self) -> SplitInfo:
        """Close the last shard and return the contents of the split."""
        if self._shard:
            self._close_shard()
        return SplitInfo(
            num_documents=sum(shard.num_documents for shard in self._done),
            num_tokens=sum(shard.num_tokens for shard in self._done),
            text_bytes=sum(shard.text_bytes for shard in self._done),
            shards=tuple(self._done),
        )

    def _open_shard(self) -> "_OpenShard":
        self._shard = _OpenShard(ShardPaths.of(self._folder, self._split, len(self._done)))
        return self._shard

    def _close_shard(self) -> None:
        assert self._shard
        self._done.append(self._shard.close())
        self._shard = None


class _OpenShard:
    def __init__(self, paths: ShardPaths) -> None:
        self._paths = paths
        self.file = paths.tokens.open("wb")
        self._sha256 = hashlib.sha256()
        self._lengths: list[npt.NDArray[Any]] = []
        self._text_bytes: list[npt.NDArray[Any]] = []
        self.num_tokens = 0
        self.num_documents = 0

    def append(self, tokens_N: npt.NDArray[Any], lengths_D: npt.NDArray[Any], text_bytes_D: npt.NDArray[Any]) -> None:
        content = np.ascontiguousarray(tokens_N).data
        self.file.write(content)
        self._sha256.update(content)
        self._lengths.append(lengths_D.astype(np.uint64))
        self._text_bytes.append(text_bytes_D.astype(np.uint32))
        self.num_tokens += len(tokens_N)
        self.num_documents += len(lengths_D)

    def close(self) -> ShardInfo:
        self.file.close()
        text_bytes = np.concatenate(self._text_bytes)
        offsets = np.concatenate([np.zeros(1, np.uint64), np.cumsum(np.concatenate(self._lengths), dtype=np.uint64)])
        return ShardInfo(
            num_documents=self.num_documents,
            num_tokens=self.num_tokens,
            text_bytes=int(text_bytes.sum(dtype=np.uint64)),
            tokens_sha256=self._sha256.hexdigest(),
            offsets_sha256=_save(self._paths.offsets, offsets),
            bytes_sha256=_save(self._paths.document_bytes, text_bytes),
        )


def _save(path: Path, array: npt.NDArray[Any]) -> str:
    np.save(path, array, allow_pickle=False)
    return sha256_of(path)
