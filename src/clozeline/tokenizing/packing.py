"""Stream a Parquet file of texts into token shards. Memory holds a few batches, whatever the size of the corpus.

Shapes: D documents of a batch, N their tokens, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from tokenizers import Tokenizer

from clozeline.artifacts.preprocess.clean_text import TEXT, columns_of, num_rows, texts_of
from clozeline.progress import ProgressBar
from clozeline.tokenizer.folder import OpenTokenizer
from clozeline.tokenizing.earlier_ids import EarlierIds
from clozeline.tokenizing.shard_writer import ShardWriter
from clozeline.tokenizing.word_cache import WordCache
from clozeline.tokenizing.word_encoding import Encoded
from clozeline.tokens.info import SplitInfo
from clozeline.words.as_bytes.cutting import CutTexts, text_bytes

Item = TypeVar("Item")


@dataclass
class PackingCount:
    """Counts of one split: tokens in = tokens packed + tokens dropped."""

    vocab_size: int
    num_documents: int = 0
    num_empty_documents: int = 0
    text_bytes: int = 0
    tokens_in: int = 0
    tokens_packed: int = 0
    tokens_dropped: int = 0
    """Special tokens that the tokenizer found in raw text."""
    special_strings_in_text: int = 0
    """Occurrences of `[MASK]` or another special token written out in a text; they are packed as ordinary text."""
    uses_V: npt.NDArray[np.int64] = field(init=False)
    """Number of times each id was packed."""

    def __post_init__(self) -> None:
        self.uses_V = np.zeros(self.vocab_size, dtype=np.int64)


def text_batches(path: Path, description: str) -> Iterator[list[str]]:
    """Yield the texts of a Parquet file in row order, with a progress bar.

    Raises:
        ArtifactError: the file is missing, damaged or has no column of texts.
    """
    with ProgressBar(description, num_rows(path, TEXT)) as bar:
        for texts in texts_of(path):
            yield texts
            bar.advance(len(texts))


def pack(
    path: Path, opened: OpenTokenizer, writer: ShardWriter, earlier: EarlierIds | None = None
) -> tuple[SplitInfo, PackingCount]:
    """Append every text of the Parquet file `path` to `writer`.

    The shards depend neither on the number of threads nor on `earlier`, the ids of texts that an earlier run encoded.

    Raises:
        ArtifactError: the file is missing, damaged or has no column of texts.
    """
    count = PackingCount(opened.vocab_size)
    forbidden_V = np.zeros(opened.vocab_size, dtype=bool)
    forbidden_V[[id_ for id_ in opened.special_ids.every if id_ != opened.special_ids.unk]] = True
    with ProgressBar(f"tokenize {path.stem}", num_rows(path, TEXT)) as bar:
        encoded_columns = (
            _encoded(path, opened.tokenizer) if earlier is None else _completed(path, opened.tokenizer, earlier)
        )
        for column, encoded in encoded_columns:
            _append(column, encoded, forbidden_V, writer, count)
            count.special_strings_in_text += _occurrences(column, opened.special_strings)
            bar.advance(len(column))
    return writer.finish(), count


def _encoded(path: Path, tokenizer: Tokenizer) -> Iterator[tuple[Any, Encoded]]:
    """Yield columns of texts with their ids."""
    columns = ((column, column) for (column,) in columns_of(path, TEXT))
    return _looked_up(columns, tokenizer)


def _completed(path: Path, tokenizer: Tokenizer, earlier: EarlierIds) -> Iterator[tuple[Any, Encoded]]:
    """Yield columns of texts with their ids, of which only those of new texts are computed."""
    for part, encoded in _looked_up(((part, part.new) for part in earlier.parts_of(path)), tokenizer):
        yield part.texts_D, earlier.completed(part, encoded)


def _looked_up(items: Iterable[tuple[Item, Any]], tokenizer: Tokenizer) -> Iterator[tuple[Item, Encoded]]:
    """Yield each item with the ids of its texts; a thread cuts the next texts while the current ones are looked up."""
    words = WordCache.create(tokenizer)
    with ThreadPoolExecutor(1) as thread:
        before: tuple[Item, Future[CutTexts]] | None = None
        for item, texts in items:
            cut = thread.submit(words.cut, texts)
            if before:
                yield before[0], words.look_up(before[1].result())
            before = item, cut
        if before:
            yield before[0], words.look_up(before[1].result())


def _append(
    column: Any, encoded: Encoded, forbidden_V: npt.NDArray[np.bool_], writer: ShardWriter, count: PackingCount
) -> None:
    tokens_N, lengths_D = encoded.tokens_N, encoded.lengths_D
    count.tokens_in += len(tokens_N)
    is_forbidden_N = forbidden_V[tokens_N]
    if is_forbidden_N.any():
        document_N = np.repeat(np.arange(len(lengths_D)), lengths_D)
        lengths_D = lengths_D - np.bincount(document_N[is_forbidden_N], minlength=len(lengths_D))
        tokens_N = tokens_N[~is_forbidden_N]
    text_bytes_D = pc.binary_length(column).to_numpy(zero_copy_only=False)
    writer.append(tokens_N, lengths_D, text_bytes_D)
    count.num_documents += len(lengths_D)
    count.num_empty_documents += int((lengths_D == 0).sum())
    count.text_bytes += int(text_bytes_D.sum(dtype=np.int64))
    count.tokens_packed += len(tokens_N)
    count.tokens_dropped += int(is_forbidden_N.sum())
    count.uses_V += np.bincount(tokens_N, minlength=len(count.uses_V))


def _occurrences(column: Any, strings: Sequence[str]) -> int:
    content = text_bytes(column)[1]
    # Most texts hold none, and one search over all bytes is much cheaper than counting text by text.
    found = [text for text in strings if text.encode() in content]
    return sum(pc.sum(pc.count_substring(column, text)).as_py() or 0 for text in found)
