"""A clean text of a test's own, as `preprocess` writes it."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.records.identity import identity_of
from clozeline.text.clean_writer import CLEAN


def write_clean_text(path: Path, texts: Sequence[str]) -> None:
    columns = [[identity_of(text) for text in texts], list(texts), ["test"] * len(texts), [""] * len(texts)]
    pq.write_table(pa.table(columns, schema=CLEAN), path)
