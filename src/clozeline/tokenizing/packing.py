"""Stream a Parquet file of texts into token shards. Memory holds a few batches, whatever the size of the corpus.

Shapes: D documents of a batch, N their tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from tokenizers import Tokenizer

from clozeline.artifacts.preprocess.clean_text import TEXT, columns_of, num_rows, texts_of
from clozeline.progress import ProgressBar
from clozeline.tokenizer.folder import OpenTokenizer
from clozeline.tokenizing.shard_writer import ShardWriter
from clozeline.tokenizing.word_cache import WordCache
from clozeline.tokenizing.word_encoding import Encoded
from clozeline.tokens.info import SplitInfo
from clozeline.words.as_bytes.cutting import CutTexts, text_bytes


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


def pack(path: Path, opened: OpenTokenizer, writer: ShardWriter) -> tuple[SplitInfo, PackingCount]:
    """Append every text of the Parquet file `path` to `writer`. The shards do not depend on the number of threads.

    Raises:
        ArtifactError: the file is missing, damaged or has no column of texts.
    """
    count = PackingCount(opened.vocab_size)
    forbidden_V = np.zeros(opened.vocab_size, dtype=bool)
    forbidden_V[[id_ for id_ in opened.special_ids.every if id_ != opened.special_ids.unk]] = True
    with ProgressBar(f"tokenize {path.stem}", num_rows(path, TEXT)) as bar:
        for column, encoded in _encoded(path, opened.tokenizer):
            _append(column, encoded, forbidden_V, writer, count)
            count.special_strings_in_text += _occurrences(column, opened.special_strings)
            bar.advance(len(column))
    return writer.finish(), count


def _encoded(path: Path, tokenizer: Tokenizer) -> Iterator[tuple[Any, Encoded]]:
    """Yield columns of texts with their ids; a thread cuts the next column while the current one is looked up."""
    words = WordCache.create(tokenizer)
    with ThreadPoolExecutor(1) as thread:
        before: tuple[Any, Future[CutTexts]] | None = None
        for (column,) in columns_of(path, TEXT):
            cut = thread.submit(words.cut, column)
            if before:
                yield before[0], words.look_up(before[1].result())
            before = column, cut
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
