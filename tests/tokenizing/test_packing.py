"""Claim: a Parquet file is read as a stream; texts that have been packed are released."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.tokenizing.packing import text_batches


def test_reading_a_longer_file_holds_no_more_of_it(tmp_path: Path) -> None:
    draw = random.Random(1)
    path = tmp_path / "train.parquet"
    texts = [draw.randbytes(1_000).hex() for _ in range(4_000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=100, compression="zstd")
    read, held_bytes = [], []
    before = pa.total_allocated_bytes()
    for batch in text_batches(path, "read"):
        read += batch
        held_bytes.append(pa.total_allocated_bytes() - before)
    assert read == texts
    assert max(held_bytes) < 2_000_000 < path.stat().st_size
