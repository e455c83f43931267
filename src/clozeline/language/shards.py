"""Token shards: the tokens of a corpus on disk, documents back to back, read through memory maps; and their rows.

A shard ends between two documents, never inside one, and a row never crosses a document. Special tokens are not stored:
the reader of a batch adds them at the ends of its rows. The contents of a shard depend only on the documents and on
`shard_tokens`.

Shapes: D documents, N tokens, S spans; R rows of a split, B rows of a batch, L its longest row. Of a batch, N is its
content tokens or targets.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from clozeline.language.draws import Ids
from clozeline.records.reading.tokens import REBUILD, ShardInfo, ShardPaths, SpecialIds, TokensInfo
from clozeline.records.words.numbers import IndexArray, run_positions
from clozeline.system.arrays import DiskArrays, chunks
from clozeline.system.errors import ArtifactError

_READ_BYTES = 1 << 22
TokenArray = NDArray[np.uint16] | NDArray[np.uint32]

# [CLS] before a row and [SEP] after it.
NUM_BOUNDARY_TOKENS = 2

# Number of documents processed at a time. Arrays as long as the corpus lie in files.
_DOCUMENTS_AT_A_TIME = 1 << 13


class TokenShards:
    """One split of a corpus. Ordinals of documents and positions of tokens count from the start of the split.

    - `offsets` (uint64, [D + 1]): document `i` is tokens `offsets[i]` to `offsets[i + 1]`;
    - `document_bytes` (uint32, [D]): UTF-8 bytes of each document's text.
    """

    def __init__(self, folder: Path, split: str, info: TokensInfo) -> None:
        self._folder = folder
        self.split = split
        self.info = info
        shards = info.splits[split].shards
        self._paths = [ShardPaths.of(folder, split, ordinal) for ordinal in range(len(shards))]
        pairs = list(zip(self._paths, shards, strict=True))
        self._tokens = [_map_tokens(paths.tokens, shard.num_tokens, np.dtype(info.dtype)) for paths, shard in pairs]
        self._starts = [0, *np.cumsum([shard.num_tokens for shard in shards], dtype=np.int64).tolist()]
        parts = (_read_offsets(paths.offsets, shard) for paths, shard in pairs)
        ends = (part[1:] + np.uint64(start) for part, start in zip(parts, self._starts, strict=False))
        self.offsets: NDArray[np.uint64] = DiskArrays().joined(chain([np.zeros(1, np.uint64)], ends), np.uint64)
        sizes = (_read_array(paths.document_bytes, shard.num_documents, np.dtype(np.uint32)) for paths, shard in pairs)
        self.document_bytes: NDArray[np.uint32] = DiskArrays().joined(sizes, np.uint32)

    @classmethod
    def open(cls, folder: Path, split: str) -> Self:
        """Map the shards of `split`. Sizes are checked, not contents.

        Raises:
            ArtifactError: a file is missing, truncated or does not fit its neighbours; or the split does not exist.
        """
        info = TokensInfo.of_folder(folder)
        if split not in info.splits:
            raise ArtifactError(f"{folder} has no split `{split}`, only {', '.join(info.splits)}", do=REBUILD)
        return cls(folder, split, info)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Path, str]]:
        """Let a worker process open the files itself: a pickled memory map would carry the whole corpus."""
        return type(self).open, (self._folder, self.split)

    @property
    def num_documents(self) -> int:
        return self.info.splits[self.split].num_documents

    @property
    def num_tokens(self) -> int:
        return self.info.splits[self.split].num_tokens

    @property
    def text_bytes(self) -> int:
        return self.info.splits[self.split].text_bytes

    @property
    def vocab_size(self) -> int:
        return self.info.vocab_size

    def document(self, ordinal: int) -> TokenArray:
        """Return the tokens of one document, as a view of the file."""
        return self.tokens(int(self.offsets[ordinal]), int(self.offsets[ordinal + 1]))

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return tokens `start` to `stop` of the split: a view if one shard holds them, else a copy."""
        assert 0 <= start <= stop <= self.num_tokens, (start, stop, self.num_tokens)
        parts: list[TokenArray] = []
        for ordinal in range(bisect_right(self._starts, start) - 1, bisect_left(self._starts, stop)):
            shard_start = self._starts[ordinal]
            parts.append(self._tokens[ordinal][max(start - shard_start, 0) : stop - shard_start])
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, self.info.dtype), *parts])

    def take(self, starts_S: IndexArray, lengths_S: IndexArray) -> TokenArray:
        """Return the tokens of many spans, `starts_S[i]` to `starts_S[i] + lengths_S[i]`, as one copy [N]."""
        positions_N = run_positions(starts_S, lengths_S)
        if len(self._tokens) == 1:
            return self._tokens[0][positions_N]
        taken_N: TokenArray = np.empty(len(positions_N), dtype=self.info.dtype)
        shard_N = np.searchsorted(self._starts, positions_N, side="right") - 1
        for ordinal in np.unique(shard_N):
            here_N = shard_N == ordinal
            taken_N[here_N] = self._tokens[ordinal][positions_N[here_N] - self._starts[ordinal]]
        return taken_N

    def read_ahead(self, ordinals: Sequence[int]) -> None:
        """Read whole shards, so that the kernel has them in memory when rows are taken from random places in them."""
        buffer = bytearray(_READ_BYTES)
        for ordinal in ordinals:
            with self._paths[ordinal].tokens.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def _map_tokens(path: Path, num_tokens: int, dtype: np.dtype[Any]) -> TokenArray:
    expected = num_tokens * dtype.itemsize
    given = path.stat().st_size if path.exists() else None
    if given != expected:
        fault = "missing" if given is None else f"truncated or overwritten: {given:,} bytes"
        raise ArtifactError(f"{path} is {fault}, not {expected:,} bytes for {num_tokens:,} tokens", do=REBUILD)
    if num_tokens == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")


def _read_array(path: Path, length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArtifactError(f"{path} ({length:,} numbers) is missing or damaged: {error}", do=REBUILD) from error
    if array.shape != (length,) or array.dtype != dtype:
        raise ArtifactError(
            f"{path} does not fit its shard: expected {dtype} ({length},), got {array.dtype} {array.shape}", do=REBUILD
        )
    return array


def _read_offsets(path: Path, shard: ShardInfo) -> NDArray[np.uint64]:
    offsets = _read_array(path, shard.num_documents + 1, np.dtype(np.uint64))
    if offsets[0] != 0 or offsets[-1] != shard.num_tokens or np.any(offsets[1:] < offsets[:-1]):
        raise ArtifactError(
            f"{path} does not fit its shard: offsets {offsets[0]} to {offsets[-1]}, not 0 to {shard.num_tokens}",
            do=REBUILD,
        )
    return offsets


@dataclass(frozen=True)
class Rows:
    """All documents of a split, cut into rows of nearly equal length."""

    document_R: NDArray[np.int64]
    start_R: NDArray[np.int64]  # first token of the row, counted in its document
    length_R: NDArray[np.int64]  # content tokens, without [CLS] and [SEP]

    @classmethod
    def cut(cls, offsets: NDArray[np.uint64], max_length: int) -> Self:
        """Cut documents into rows of at most `max_length` tokens, including the two boundary tokens.

        A document of n tokens becomes ⌈n / capacity⌉ rows whose lengths differ by at most one, so no row is a tail of
        three tokens without context. No token is dropped or repeated.
        """
        capacity = max_length - NUM_BOUNDARY_TOKENS
        num_documents = max(len(offsets) - 1, 0)
        num_rows = sum(
            int((-(-_sizes(offsets, chunk) // capacity)).sum()) for chunk in chunks(num_documents, _DOCUMENTS_AT_A_TIME)
        )
        document_R, start_R, length_R = (DiskArrays().empty(num_rows, np.int64) for _ in range(3))
        done = 0
        for chunk in chunks(num_documents, _DOCUMENTS_AT_A_TIME):
            size_D = _sizes(offsets, chunk)
            num_rows_D = -(-size_D // capacity)
            document_C = np.repeat(np.arange(len(size_D)), num_rows_D)
            first_row_D = np.cumsum(num_rows_D) - num_rows_D
            ordinal_C = np.arange(len(document_C)) - first_row_D[document_C]
            share_C, extra_C = np.divmod(size_D[document_C], num_rows_D[document_C])
            here = slice(done, done + len(document_C))
            document_R[here] = document_C + chunk.start
            start_R[here] = ordinal_C * share_C + np.minimum(ordinal_C, extra_C)
            length_R[here] = share_C + (ordinal_C < extra_C)
            done += len(document_C)
        return cls(document_R, start_R, length_R)

    def __len__(self) -> int:
        return len(self.length_R)


def _sizes(offsets: NDArray[np.uint64], documents: slice) -> NDArray[np.int64]:
    return np.diff(offsets[documents.start : documents.stop + 1]).astype(np.int64)


@dataclass(frozen=True)
class RowTokens:
    """Content tokens of a batch back to back, and the index of each in the padded batch."""

    input_ids_N: Ids
    document_N: Ids
    position_N: Ids  # position of each token in its document
    row_N: Ids
    place_N: Ids  # position of each token in its row, not counting [CLS]
    length_B: NDArray[np.int64]  # length of each row, including boundary tokens
    ends_document_B: NDArray[np.bool_]

    @property
    def longest(self) -> int:
        return int(self.length_B.max())

    @property
    def slot_N(self) -> Ids:
        """Index into the flattened [B × L] batch."""
        return self.row_N * self.longest + self.place_N + 1

    def padded(self, input_ids_N: Ids, boundary: SpecialIds) -> Ids:
        """Return `input_ids_BL`: [CLS] content [SEP] [PAD] …, with `input_ids_N` as the content."""
        num_rows = len(self.length_B)
        input_ids_BL = np.full((num_rows, self.longest), boundary.pad, dtype=np.int64)
        input_ids_BL[:, 0] = boundary.cls
        input_ids_BL[np.arange(num_rows), self.length_B - 1] = boundary.sep
        input_ids_BL.reshape(-1)[self.slot_N] = input_ids_N
        return input_ids_BL


def gather(shards: TokenShards, rows: Rows, chosen_B: NDArray[np.int64]) -> RowTokens:
    """Read the rows `chosen_B`."""
    document_B, start_B, length_B = rows.document_R[chosen_B], rows.start_R[chosen_B], rows.length_R[chosen_B]
    first_B = shards.offsets[document_B].astype(np.int64)
    input_ids_N = shards.take(first_B + start_B, length_B).astype(np.int64)
    row_N = np.repeat(np.arange(len(chosen_B)), length_B)
    place_N = np.arange(len(row_N)) - np.repeat(np.cumsum(length_B) - length_B, length_B)
    return RowTokens(
        input_ids_N=input_ids_N,
        document_N=document_B[row_N],
        position_N=start_B[row_N] + place_N,
        row_N=row_N,
        place_N=place_N,
        length_B=length_B + NUM_BOUNDARY_TOKENS,
        ends_document_B=first_B + start_B + length_B == shards.offsets[document_B + 1].astype(np.int64),
    )
