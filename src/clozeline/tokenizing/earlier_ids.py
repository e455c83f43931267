"""Ids of texts that the last run encoded: what makes one percent more text cheap.

A partition that did not change is found in the ledger. New texts fall between all others, because clean text is in the
order of its keys, so a corpus that grew has few such partitions; but most texts of each are in the partitions that the
last run encoded of the same keys, and are found there one by one, by the exact text.

Shapes: D texts, K texts of the last run.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clozeline.cluster.ledger import FinishedTask, Ledger, record_in
from clozeline.records import record
from clozeline.records.words.bytes import text_bytes
from clozeline.system.errors import ArtifactError
from clozeline.tokenizing.shards import EncodedFiles, Partition

_LOG = logging.getLogger(__name__)
_FILE = "last-run.json"
_DIGEST_BYTES = 16


class EncodedPartition(record.Record):
    """A partition as a run encoded it."""

    split: str
    doc_ids: tuple[str, str]  # least and greatest
    place: str  # its folder in that of the ledger


class LastRun(record.Record):
    """What the last run encoded, by which code and tokenizer."""

    code: str
    tokenizer_sha256: str
    partitions: tuple[EncodedPartition, ...] = ()


@dataclass(frozen=True)
class EarlierIds:
    """The last run beside this one."""

    ledger: Ledger
    last: LastRun  # with the code and the tokenizer of this run

    @classmethod
    def open(cls, ledger: Ledger, tokenizer_sha256: str) -> Self:
        """Return what there is for a tokenizer."""
        same = LastRun(code=ledger.code, tokenizer_sha256=tokenizer_sha256)
        try:
            last = LastRun.read(ledger.folder / _FILE)
        except ArtifactError:  # there is none, or another version wrote it
            last = None
        if last is not None and last.tokenizer_sha256 != tokenizer_sha256:
            _LOG.info("The vocabulary is not that of the last run: every text is encoded again")
        is_same = last is not None and (last.code, last.tokenizer_sha256) == (same.code, same.tokenizer_sha256)
        return cls(ledger, last if last is not None and is_same else same)

    def of(self, split: str, partition: Partition) -> tuple[Path, ...]:
        """Return the folders of the partitions whose texts may be in `partition`."""
        if partition.doc_ids is None:
            return ()
        low, high = partition.doc_ids
        return tuple(
            self.ledger.folder / one.place
            for one in self.last.partitions
            if one.split == split and one.doc_ids[0] <= high and low <= one.doc_ids[1]
        )

    def keep(self, encoded: Sequence[tuple[str, Partition, FinishedTask]]) -> None:
        """Keep the ids of this run, for the next one, and remove all else."""
        self.ledger.keep_only({done.key for _, _, done in encoded})
        partitions = tuple(
            EncodedPartition(split=split, doc_ids=part.doc_ids, place=str(done.folder.relative_to(self.ledger.folder)))
            for split, part, done in encoded
            if part.doc_ids is not None
        )
        self.last.model_copy(update={"partitions": partitions}).write(self.ledger.folder / _FILE, indent=None)


@dataclass(frozen=True)
class KnownIds:
    """Ids of texts that are known."""

    places: dict[bytes, int]  # digest of a text → its place in the arrays
    ids_K: Any  # Arrow array of lists of ids
    dropped_K: npt.NDArray[np.uint32]  # tokens of each text that were dropped

    @classmethod
    def read(cls, folders: Sequence[Path], dtype: str) -> Self:
        """Return the ids of encoded partitions; a damaged one holds none."""
        whole = [EncodedFiles(folder, dtype) for folder in folders if record_in(folder)]
        digests = [digest for files in whole for digest in _digests(files.digests.read_bytes())]
        kind = pa.large_list(pa.from_numpy_dtype(dtype))
        ids = [_lists(files.all_tokens(), files.columns()[0]) for files in whole]
        dropped = [files.columns()[2] for files in whole]
        return cls(
            {digest: place for place, digest in enumerate(digests)},
            pa.concat_arrays([pa.array([], kind), *ids]),
            np.concatenate([np.zeros(0, np.uint32), *dropped]),
        )

    def places_of(self, digests: Iterable[bytes]) -> npt.NDArray[np.int64]:
        """Return the place of each text; -1 of one that is not known."""
        return np.array([self.places.get(digest, -1) for digest in digests], dtype=np.int64)


@dataclass(frozen=True)
class Ids:
    """Ids of some texts, back to back, without the tokens that were dropped."""

    tokens_N: npt.NDArray[Any]
    lengths_D: npt.NDArray[np.int64]
    dropped_D: npt.NDArray[np.int64]


def completed(place_D: npt.NDArray[np.int64], known: KnownIds, new: Ids) -> Ids:
    """Return the ids of texts from those that are known, at `place_D`, and those of the others, in their order."""
    is_new_D = place_D < 0
    if is_new_D.all():
        return new
    found_K = place_D[~is_new_D]
    order_D = np.where(is_new_D, len(found_K) + np.cumsum(is_new_D) - 1, np.cumsum(~is_new_D) - 1)
    found = known.ids_K.take(pa.array(found_K))
    ids_D = pa.concat_arrays([found, _lists(new.tokens_N, new.lengths_D).cast(found.type)]).take(pa.array(order_D))
    dropped_D = np.concatenate([known.dropped_K[found_K], new.dropped_D])[order_D]
    return Ids(ids_D.values.to_numpy(), np.diff(ids_D.offsets.to_numpy()), dropped_D)


def digests_of(texts_D: Any) -> list[bytes]:
    """Return a digest of each text of an Arrow array."""
    offsets_D, content = text_bytes(texts_D)
    bounds, view = offsets_D.tolist(), memoryview(content)
    return [blake2b(view[start:end], digest_size=_DIGEST_BYTES).digest() for start, end in pairwise(bounds)]


def _digests(stored: bytes) -> list[bytes]:
    return [stored[start : start + _DIGEST_BYTES] for start in range(0, len(stored), _DIGEST_BYTES)]


def _lists(tokens_N: npt.NDArray[Any], lengths_D: npt.NDArray[Any]) -> Any:
    offsets = np.append(0, np.cumsum(lengths_D, dtype=np.int64))
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens_N))
