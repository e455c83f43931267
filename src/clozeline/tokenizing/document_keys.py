"""Keys of documents, by which a text is known in every snapshot, whatever its place and its tokens."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from clozeline.artifacts.preprocess.clean_text import DOC_ID, TEXT, columns_of
from clozeline.storage.arrays import DiskArrays
from clozeline.words.as_bytes.hashing import word_hashes


def write_document_keys(clean: Path, out: Path) -> None:
    """Write 64 bits of each `doc_id` of a file of clean text to `out`, a NumPy file, in the order of the rows.

    Raises:
        ArtifactError: the file is damaged, or has no such column.
    """
    parts = (word_hashes(ids) for (ids,) in columns_of(clean, DOC_ID))
    np.save(out, DiskArrays().joined(parts, np.uint64), allow_pickle=False)


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
