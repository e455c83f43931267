"""Claim: shards are read as they were written, from any partitions; an error names a damaged file."""

from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest

from clozeline.language.shards import Rows, TokenShards, gather
from clozeline.records.reading.tokens import INFO_NAME, SpecialIds, TokensInfo, dtype_for
from clozeline.system.errors import ArtifactError
from tests.make.texts import write_documents

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, every=(0, 1, 2, 3, 4))


def documents(count: int, vocab_size: int = 1000, longest: int = 40) -> list[np.ndarray]:
    draw = np.random.default_rng(7)
    return [draw.integers(5, vocab_size, size=draw.integers(0, longest)) for _ in range(count)]


def write(
    folder: Path, texts: Sequence[np.ndarray], *, shard_tokens: int, partition: int = 8, vocab_size: int = 1000
) -> Path:
    folder.mkdir()
    how = {"bytes_per_token": 3, "shard_tokens": shard_tokens, "dtype": dtype_for(vocab_size), "partition": partition}
    splits = {"train": write_documents(folder, "train", texts, **how)}
    info = TokensInfo.of(vocab_size=vocab_size, tokenizer_sha256="", special_ids=SPECIAL, splits=splits)
    info.write(folder / INFO_NAME)
    return folder


@pytest.mark.parametrize("shard_tokens", [100_000, 200, 1])
def test_documents_and_ranges_of_tokens_survive_a_round_trip(shard_tokens: int, tmp_path: Path) -> None:
    """In one shard, in several, and in one for each document; what workers get is the path, not the corpus."""
    texts = documents(100)
    shards = TokenShards.open(write(tmp_path / "tokens", texts, shard_tokens=shard_tokens), "train")
    assert (shards.num_documents, shards.num_tokens) == (len(texts), sum(map(len, texts)))
    assert shards.text_bytes == 3 * shards.num_tokens
    assert shards.document_bytes.tolist() == [3 * len(text) for text in texts]
    assert [shards.document(ordinal).tolist() for ordinal in range(100)] == [text.tolist() for text in texts]
    whole = np.concatenate(texts)
    draw = np.random.default_rng(2)
    starts, lengths = draw.integers(0, len(whole) - 60, size=100), draw.integers(0, 60, size=100)
    spans = [whole[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    np.testing.assert_array_equal(shards.take(starts, lengths), np.concatenate(spans))
    np.testing.assert_array_equal(shards.tokens(starts[0], starts[0] + lengths[0]), spans[0])
    np.testing.assert_array_equal(shards.tokens(0, len(whole)), whole)
    assert len(shards.take(starts[:0], lengths[:0])) == 0
    pickled = ForkingPickler.dumps(shards)
    assert len(pickled) < 500
    assert ForkingPickler.loads(pickled).document(9).tolist() == texts[9].tolist()


def test_the_files_do_not_depend_on_the_partitions(tmp_path: Path) -> None:
    texts = documents(60)
    folders = [write(tmp_path / str(size), texts, shard_tokens=150, partition=size) for size in (1, 7, 60)]
    one, *others = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders)
    assert [one, one] == others
    assert len(one) > 10


def test_shards_have_their_limit_but_for_a_single_long_document_and_four_bytes_for_a_large_vocabulary(
    tmp_path: Path,
) -> None:
    texts = [np.arange(5, 5 + length) for length in (10, 90, 10, 300, 10, 50, 40)]
    info = TokensInfo.of_folder(write(tmp_path / "tokens", texts, shard_tokens=100))
    assert [shard.num_tokens for shard in info.splits["train"].shards] == [100, 10, 300, 100]
    assert (dtype_for(65_536), dtype_for(65_537)) == ("uint16", "uint32")
    few = [np.array([5, 70_000]), np.zeros(0, int)]
    shards = TokenShards.open(write(tmp_path / "large", few, shard_tokens=10, vocab_size=70_001), "train")
    assert [shards.document(ordinal).tolist() for ordinal in range(2)] == [[5, 70_000], []]
    with pytest.raises(ArtifactError, match="no split `test`"):
        TokenShards.open(tmp_path / "tokens", "test")


def offsets_of(*sizes: int) -> np.ndarray:
    return np.cumsum([0, *sizes]).astype(np.uint64)


class CountingTokens:
    """Token i of the split is the number i, so that a test sees which tokens were read."""

    def __init__(self, offsets: np.ndarray) -> None:
        self.offsets = offsets

    def take(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        spans = [np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        return np.concatenate(spans)


def many_rows() -> Rows:
    sizes = np.random.default_rng(0).geometric(1 / 130, size=5000)
    return Rows.cut(offsets_of(*sizes), max_length=64)


@pytest.mark.parametrize(
    ("size", "lengths"),
    [(0, []), (1, [1]), (62, [62]), (63, [32, 31]), (125, [42, 42, 41]), (1000, [59] * 14 + [58] * 3)],
)
def test_no_token_of_a_document_is_dropped_or_repeated(
    size: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut into rows of nearly equal length, however many documents are cut at once."""
    whole = Rows.cut(offsets_of(10, size, 3), max_length=64)
    of_it = whole.document_R == 1
    assert whole.length_R[of_it].tolist() == lengths
    assert whole.start_R[of_it].tolist() == np.cumsum([0, *lengths])[:-1].tolist()
    monkeypatch.setattr("clozeline.language.shards._DOCUMENTS_AT_A_TIME", 2)
    for one, other in zip(vars(whole).values(), vars(Rows.cut(offsets_of(10, size, 3), 64)).values(), strict=True):
        assert one.tolist() == other.tolist()


def test_a_batch_frames_each_row_and_records_the_origin_of_each_token() -> None:
    """Positions count from the start of the document, not of the row."""
    offsets = offsets_of(100, 3, 5)
    rows = Rows.cut(offsets, max_length=64)
    tokens = gather(CountingTokens(offsets), rows, np.array([2, 3]))
    padded = [[2, 100, 101, 102, 3, 0, 0], [2, 103, 104, 105, 106, 107, 3]]
    assert tokens.padded(tokens.input_ids_N, SPECIAL).tolist() == padded
    assert tokens.document_N.tolist() == [1, 1, 1, 2, 2, 2, 2, 2]
    assert tokens.position_N.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert gather(CountingTokens(offsets), rows, np.array([1])).position_N.tolist() == list(range(50, 100))
