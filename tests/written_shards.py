"""Token shards of a test's own, as `tokenize` writes them."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from clozeline.cluster.ledger import passing_ledger
from clozeline.records.reading.tokens import SplitInfo
from clozeline.tokenizing.shards import EncodedFiles, EncodedWriter, write_shards


def write_documents(
    folder: Path,
    split: str,
    documents: Sequence[np.ndarray[Any, Any]],
    *,
    bytes_per_token: int,
    shard_tokens: int,
    dtype: Literal["uint16", "uint32"] = "uint16",
    partition: int = 10**9,
) -> SplitInfo:
    """Write the shards of a split from documents, `partition` of them in a partition."""
    with TemporaryDirectory() as name:
        files = []
        for start in range(0, len(documents), partition):
            files.append(EncodedFiles(Path(name) / str(start), dtype))
            files[-1].folder.mkdir()
            with EncodedWriter(files[-1]) as writer:
                for document in documents[start : start + partition]:
                    length = np.array([len(document)])
                    writer.append(document, [length, length * bytes_per_token, 0 * length], [b""])
        with passing_ledger() as ledger:
            return write_shards(files, folder, split, shard_tokens, ledger)
