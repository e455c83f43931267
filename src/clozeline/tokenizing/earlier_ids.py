"""Ids of texts that an earlier run encoded, by the tokenizer and the exact text.

Clean text is in the order of its keys, `doc_id`. Ids are kept for ranges of keys, so that a corpus that grew finds
those of its texts, range by range, in memory that does not grow with it. A range belongs to one partition, so processes
do not meet at a file.

Shapes: D texts of a range.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby, pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa

from clozeline.artifacts.preprocess.clean_text import DOC_ID, TEXT
from clozeline.storage.fingerprints import code_of, fingerprint, versions_of
from clozeline.storage.kept_results import KeptResults
from clozeline.tokenizer.folder import OpenTokenizer
from clozeline.tokenizing.partitions import TEXTS_A_RANGE, Partition, range_of
from clozeline.tokenizing.word_encoding import Encoded
from clozeline.tokens.info import dtype_for
from clozeline.words.as_bytes.cutting import text_bytes

_LOG = logging.getLogger(__name__)
_DECISIVE_PACKAGES = ("numpy", "pyarrow", "tokenizers")
_CODE = ("inference/word_cuts.py", "tokenizer", "tokenizing", "words/as_bytes")
"""Folders and files of the package that decide the ids of a text."""
_LAST_TOKENIZER = "last-tokenizer"
_MOST_TEXTS = 4 * TEXTS_A_RANGE
"""Limit of the texts read at a time, for files whose `doc_id` is not evenly spread."""
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Part:
    """Some texts in the order of their file, with the ids that are known of them."""

    texts_D: Any
    """Arrow array of strings."""
    new: Any
    """Those of `texts_D` that have to be encoded."""
    name: str
    digests: list[bytes]
    order_D: Any
    """Place of each text's ids: in `known`, and after its end in those of `new`."""
    known: Any
    """Arrow array of lists of ids."""


@dataclass
class Found:
    """What a run needed of the ids that are kept."""

    keys: set[str] = field(default_factory=set)
    num_texts: int = 0
    num_found: int = 0

    def add(self, part: Part) -> None:
        self.keys.add(part.name)
        self.num_texts += len(part.digests)
        self.num_found += len(part.digests) - len(part.new)

    def __iadd__(self, other: Self) -> Self:
        self.keys |= other.keys
        self.num_texts += other.num_texts
        self.num_found += other.num_found
        return self


@dataclass(frozen=True)
class EarlierIds:
    kept: KeptResults
    facts: str
    """Fingerprint of all that decides the ids of a text."""
    dtype: str

    @classmethod
    def open(cls, kept: KeptResults, opened: OpenTokenizer) -> Self:
        """Return the ids that `kept` has for a tokenizer."""
        last = kept.read(_LAST_TOKENIZER)
        if last is not None and last != opened.sha256.encode():
            _LOG.info("The vocabulary is not that of the last run: every text is encoded again")
        kept.write(_LAST_TOKENIZER, opened.sha256.encode())
        facts = {"tokenizer": opened.sha256} | versions_of(_DECISIVE_PACKAGES)
        return cls(kept, fingerprint(facts, code_of(_CODE)), dtype_for(opened.vocab_size))

    def parts_of(self, partition: Partition) -> Iterator[Part]:
        """Yield the texts of a partition in parts, in order.

        Raises:
            ArtifactError: the file is missing or damaged, or lacks a column.
        """
        split, num_ranges = partition.path.stem, partition.num_ranges
        for number, texts_D in _ranges(partition):
            name = self._key(split, num_ranges, number)
            # When the number of ranges doubles, two of them find their texts in the one that was kept.
            known = self._read(name) or self._read(self._key(split, num_ranges // 2, number // 2))
            yield _part(name, texts_D, known or ([], pa.array([], self._kind)))

    def completed(self, part: Part, new: Encoded) -> Encoded:
        """Return the ids of all texts of a part from those of its new ones, and keep them."""
        offsets = pa.array(np.append(0, np.cumsum(new.lengths_D)), pa.int64())
        ids_new = pa.LargeListArray.from_arrays(offsets, pa.array(new.tokens_N).cast(self._kind.value_type))
        ids_D = pa.concat_arrays([part.known, ids_new]).take(part.order_D)
        if len(part.new) or len(part.known) != len(part.digests):
            self._write(part.name, part.digests, ids_D)
        return Encoded(ids_D.values.to_numpy().astype(np.uint32), np.diff(ids_D.offsets.to_numpy()))

    def keep_only(self, found: Found) -> None:
        """Remove what a run did not need, so that the kept ids do not outgrow the text."""
        _LOG.info("%d of %d texts encoded by earlier runs", found.num_found, found.num_texts)
        self.kept.keep_only({_LAST_TOKENIZER, *found.keys})

    @property
    def _kind(self) -> pa.DataType:
        return pa.large_list(pa.from_numpy_dtype(self.dtype))

    def _key(self, split: str, num_ranges: int, number: int) -> str:
        return blake2b(f"{self.facts} {split} {num_ranges} {number}".encode(), digest_size=16).hexdigest()

    def _read(self, key: str) -> tuple[list[bytes], Any] | None:
        result = self.kept.read(key)
        if result is None:
            return None
        with pa.ipc.open_stream(pa.py_buffer(result)) as stream:
            digests, ids = stream.read_next_batch().columns
        return digests.to_pylist(), ids

    def _write(self, key: str, digests: list[bytes], ids_D: Any) -> None:
        batch = pa.record_batch([pa.array(digests, pa.binary(_DIGEST_BYTES)), ids_D], ["digest", "ids"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        self.kept.write(key, memoryview(sink.getvalue()))


def _part(name: str, texts_D: Any, known: tuple[list[bytes], Any]) -> Part:
    places = {digest: place for place, digest in enumerate(known[0])}
    digests = _digests(texts_D)
    place_D = np.array([places.get(digest, -1) for digest in digests], dtype=np.int64)
    is_new_D = place_D < 0
    place_D[is_new_D] = len(known[0]) + np.arange(is_new_D.sum())
    return Part(texts_D, texts_D.filter(pa.array(is_new_D)), name, digests, pa.array(place_D), known[1])


def _ranges(partition: Partition) -> Iterator[tuple[int, Any]]:
    """Yield the texts of a partition by the range of their keys, as one Arrow array for each."""
    waiting: list[Any] = []
    last = -1
    for doc_ids, texts in partition.columns(DOC_ID, TEXT):
        start = 0
        for number, group in groupby(doc_ids.to_pylist(), lambda doc_id: range_of(doc_id, partition.num_ranges)):
            if waiting and (number != last or sum(map(len, waiting)) >= _MOST_TEXTS):
                yield last, pa.concat_arrays(waiting)
                waiting = []
            length = sum(1 for _ in group)
            waiting.append(texts.slice(start, length))
            start, last = start + length, number
    if waiting:
        yield last, pa.concat_arrays(waiting)


def _digests(texts_D: Any) -> list[bytes]:
    offsets_D, content = text_bytes(texts_D)
    bounds, view = offsets_D.tolist(), memoryview(content)
    return [blake2b(view[start:end], digest_size=_DIGEST_BYTES).digest() for start, end in pairwise(bounds)]
