"""Pack a file of clean text into token shards: each partition is encoded, then each shard is put together.

A document has a key, by which its text is known in every snapshot, whatever its place and its tokens.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from clozeline.cluster.ledger import FinishedTask, Ledger, passing_ledger
from clozeline.records.clean_text import DOC_ID, TEXT, columns_of
from clozeline.records.reading.tokens import SplitInfo, dtype_for
from clozeline.records.words.bytes import word_hashes
from clozeline.system import arrays, files, progress
from clozeline.tokenizing import earlier_ids, encoding
from clozeline.tokenizing.shards import EncodedFiles, Partition, write_shards
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer

_DECISIVE_PACKAGES = ("numpy", "pyarrow", "tokenizers")
# Folders and files of the package that decide what a task writes.
_CODE = (
    "records/clean_text.py",
    "records/word_cuts.py",
    "tokenizing",
    "records/reading/tokens.py",
    "records/words/bytes.py",
)


@dataclass(frozen=True)
class Packed:
    """A split as it was packed."""

    info: SplitInfo
    count: encoding.PackingCount
    encoded: Sequence[tuple[str, Partition, FinishedTask]]  # split, partition, and the record with its ids

    @property
    def num_known(self) -> int:
        """Number of texts that earlier runs had encoded."""
        return sum(part.num_rows if one.is_found else one.facts["num_known"] for _, part, one in self.encoded)


def code_of_tasks() -> str:
    """Return a fingerprint of the code and the packages that decide what a task writes."""
    return files.fingerprint(files.versions_of(_DECISIVE_PACKAGES), files.code_of(_CODE))


def pack(
    partitions: Sequence[Partition],
    opened: OpenTokenizer,
    folder: Path,
    split: str,
    shard_tokens: int,
    ledger: Ledger | None = None,
    earlier: earlier_ids.EarlierIds | None = None,
) -> Packed:
    """Write every text into the shards of `split` in `folder`.

    The shards depend neither on the workers of `ledger` nor on what it or `earlier` holds.

    Args:
        partitions: clean text.
        opened: the tokenizer.
        folder: folder of the shards.
        split: name of the split.
        shard_tokens: most tokens of a shard, unless a document has more.
        ledger: runs the tasks, and records them; by default this process does all.
        earlier: the last run.

    Raises:
        ArtifactError: the file is missing, damaged or has no column of texts.
    """
    dtype, count = dtype_for(opened.vocab_size), encoding.PackingCount(opened.vocab_size)
    items = [
        encoding.encode_item(f"partition {number} of {split}", part, opened, earlier.of(split, part) if earlier else ())
        for number, part in enumerate(partitions)
    ]
    encoded = []
    with (
        nullcontext(ledger) if ledger else passing_ledger(folder) as ledger,
        progress.ProgressBar(f"tokenize {split}", sum(partition.num_rows for partition in partitions)) as bar,
    ):
        records = ledger.run(items, read=encoding.FILES_OF_COUNTS)
        for partition, record in zip(partitions, records, strict=True):
            count.add_encoded(record)
            encoded.append((split, partition, record))
            bar.advance(partition.num_rows, ledger.workers.note)
        files = [EncodedFiles(record.folder, dtype) for _, _, record in encoded]
        return Packed(write_shards(files, folder, split, shard_tokens, ledger), count, encoded)


def write_document_keys(clean: Path, out: Path) -> None:
    """Write 64 bits of each `doc_id` of a file of clean text to `out`, a NumPy file, in the order of the rows.

    Raises:
        ArtifactError: the file is damaged, or has no such column.
    """
    parts = (word_hashes(ids) for (ids,) in columns_of(clean, DOC_ID))
    np.save(out, arrays.DiskArrays().joined(parts, np.uint64), allow_pickle=False)


def keep_known(clean: Path, keys: NDArray[np.uint64], out: Path) -> int:
    """Write those texts of a file of clean text whose key is among `keys` to `out`; return their number.

    Raises:
        ArtifactError: the file is damaged, or lacks a column.
    """
    count, schema = 0, pa.schema([(TEXT, pa.string())])
    with pq.ParquetWriter(out, schema) as file:
        for ids, texts in columns_of(clean, DOC_ID, TEXT):
            known = texts.filter(pa.array(np.isin(word_hashes(ids), keys)))
            file.write_table(pa.table([known], schema=schema))
            count += len(known)
    return count
