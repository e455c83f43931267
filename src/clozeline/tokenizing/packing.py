"""Pack a file of clean text into token shards: each partition is encoded, then each shard is put together."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from clozeline.progress import ProgressBar
from clozeline.tokenizer.folder import OpenTokenizer
from clozeline.tokenizing.earlier_ids import EarlierIds, Found
from clozeline.tokenizing.encoding import EncodeTask, PackingCount, encode_partition
from clozeline.tokenizing.partitions import Spread, partitions_of
from clozeline.tokenizing.shards import EncodedFiles, write_shards
from clozeline.tokens.info import SplitInfo, dtype_for


@dataclass(frozen=True)
class Packed:
    """A split as it was packed."""

    info: SplitInfo
    count: PackingCount
    found: Found
    """What earlier runs had encoded."""


def pack(
    path: Path,
    opened: OpenTokenizer,
    folder: Path,
    split: str,
    shard_tokens: int,
    spread: Spread = map,
    earlier: EarlierIds | None = None,
) -> Packed:
    """Write every text of the Parquet file `path` into the shards of `split` in `folder`.

    The shards depend neither on `spread` nor on `earlier`, the ids of texts that an earlier run encoded. The partitions
    are encoded into a folder inside `folder`, which is removed at the end.

    Args:
        path: clean text.
        opened: the tokenizer.
        folder: folder of the shards.
        split: name of the split.
        shard_tokens: most tokens of a shard, unless a document has more.
        spread: runs a function over partitions and shards.
        earlier: ids of earlier runs.

    Raises:
        ArtifactError: the file is missing, damaged or has no column of texts.
    """
    dtype = dtype_for(opened.vocab_size)
    partitions = partitions_of(path)
    count, found = PackingCount(opened.vocab_size), Found()
    num_rows = sum(partition.num_rows for partition in partitions)
    with TemporaryDirectory(dir=folder) as between, ProgressBar(f"tokenize {split}", num_rows) as bar:
        files = [EncodedFiles(Path(between) / str(ordinal), dtype) for ordinal in range(len(partitions))]
        tasks = [
            EncodeTask(partition, opened.folder, opened.sha256, out, earlier)
            for partition, out in zip(partitions, files, strict=True)
        ]
        for partition, done in zip(partitions, spread(encode_partition, tasks), strict=True):
            count += done.count
            found += done.found
            bar.advance(partition.num_rows)
        return Packed(write_shards(files, folder, split, shard_tokens, spread), count, found)
