"""A clean text of a test's own, as `preprocess` writes it."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.records.clean_text import SCHEMA
from clozeline.records.reading.streams import identity_of


def write_clean_text(path: Path, texts: Sequence[str], row_group: int = 2**20) -> None:
    columns = [[identity_of(text) for text in texts], list(texts), ["test"] * len(texts), [""] * len(texts)]
    pq.write_table(pa.table(columns, schema=SCHEMA), path, row_group_size=row_group)
