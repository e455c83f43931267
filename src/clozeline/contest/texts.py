"""Texts of any format as an evaluation split, tokenized by the model's own tokenizer.

The texts are spooled to disk, so that memory stays bounded.
"""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.artifacts.preprocess import clean_text
from clozeline.tokenizer.folder import OpenTokenizer
from clozeline.tokenizing.packing import pack
from clozeline.tokenizing.partitions import partitions_of
from clozeline.tokens.info import TokensInfo
from clozeline.tokens.shards import TokenShards

_SPLIT = "text"
_SHARD_TOKENS = 50_000_000
_SCHEMA = pa.schema([clean_text.SCHEMA.field(clean_text.TEXT)])
_TEXTS_AT_A_TIME = 1024


def keep(texts: Iterable[str], path: Path) -> int:
    """Write `texts` to the Parquet file `path`; return their number."""
    waiting, count = iter(texts), 0
    with pq.ParquetWriter(path, _SCHEMA) as file:
        while some := list(islice(waiting, _TEXTS_AT_A_TIME)):
            file.write_table(pa.table([some], _SCHEMA))
            count += len(some)
    return count


def shards_of(texts: Path, opened: OpenTokenizer, folder: Path) -> TokenShards:
    """Write the texts of a Parquet file as token shards into the new folder `folder`."""
    folder.mkdir()
    TokensInfo.of(
        vocab_size=opened.vocab_size,
        tokenizer_sha256=opened.sha256,
        special_ids=opened.special_ids,
        splits={_SPLIT: pack(partitions_of(texts), opened, folder, _SPLIT, _SHARD_TOKENS).info},
    ).write(folder)
    return TokenShards.open(folder, _SPLIT)
