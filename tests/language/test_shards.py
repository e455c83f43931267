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


def opened(folder: Path, texts: Sequence[np.ndarray], **how: int) -> TokenShards:
    return TokenShards.open(write(folder, texts, **how), "train")


@pytest.fixture(params=[100_000, 200, 1], ids=["one shard", "several shards", "a shard for each document"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[TokenShards, list[np.ndarray]]:
    texts = documents(100)
    return opened(tmp_path / "tokens", texts, shard_tokens=request.param), texts


def test_every_document_survives_a_round_trip(written: tuple[TokenShards, list[np.ndarray]]) -> None:
    shards, texts = written
    assert shards.num_documents == len(texts)
    assert shards.num_tokens == sum(map(len, texts))
    assert shards.text_bytes == 3 * shards.num_tokens
    assert shards.document_bytes.tolist() == [3 * len(text) for text in texts]
    for ordinal, text in enumerate(texts):
        np.testing.assert_array_equal(shards.document(ordinal), text)


def test_ranges_of_tokens_are_those_of_the_corpus_even_across_shards(written) -> None:
    shards, texts = written
    whole = np.concatenate(texts)
    draw = np.random.default_rng(2)
    starts, lengths = draw.integers(0, len(whole) - 60, size=100), draw.integers(0, 60, size=100)
    spans = [(start, start + length) for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]
    for start, stop in [*spans, (0, len(whole))]:
        np.testing.assert_array_equal(shards.tokens(start, stop), whole[start:stop])
    expected = np.concatenate([whole[start:stop] for start, stop in spans])
    np.testing.assert_array_equal(shards.take(starts, lengths), expected)
    assert len(shards.take(starts[:0], lengths[:0])) == 0


def test_the_files_do_not_depend_on_the_partitions(tmp_path: Path) -> None:
    texts = documents(60)
    folders = [write(tmp_path / str(size), texts, shard_tokens=150, partition=size) for size in (1, 7, 60)]
    contents = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1] == contents[2]
    assert len(contents[0]) > 10


def test_only_a_single_long_document_exceeds_the_shard_limit(tmp_path: Path) -> None:
    texts = [np.arange(5, 5 + length) for length in (10, 90, 10, 300, 10, 50, 40)]
    info = TokensInfo.of_folder(write(tmp_path / "tokens", texts, shard_tokens=100))
    assert [shard.num_tokens for shard in info.splits["train"].shards] == [100, 10, 300, 100]


def test_a_vocabulary_too_large_for_two_bytes_uses_four(tmp_path: Path) -> None:
    assert (dtype_for(65_536), dtype_for(65_537)) == ("uint16", "uint32")
    shards = opened(tmp_path / "tokens", [np.array([5, 70_000])], shard_tokens=10, vocab_size=70_001)
    assert shards.document(0).tolist() == [5, 70_000]


def test_a_corpus_of_empty_documents_can_be_read_and_an_unknown_split_is_refused(tmp_path: Path) -> None:
    shards = opened(tmp_path / "tokens", [np.zeros(0, int)] * 3, shard_tokens=10)
    assert (shards.num_documents, shards.num_tokens, len(shards.document(2))) == (3, 0, 0)
    with pytest.raises(ArtifactError, match="no split `test`"):
        TokenShards.open(tmp_path / "tokens", "test")


def test_a_pickle_carries_the_path_not_the_corpus(tmp_path: Path) -> None:
    shards = opened(tmp_path / "tokens", documents(100), shard_tokens=500)
    pickled = ForkingPickler.dumps(shards)
    assert len(pickled) < 500
    np.testing.assert_array_equal(ForkingPickler.loads(pickled).document(9), shards.document(9))


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
    [(0, []), (1, [1]), (62, [62]), (63, [32, 31]), (124, [62, 62]), (125, [42, 42, 41]), (1000, [59] * 14 + [58] * 3)],
)
def test_no_token_of_a_document_is_dropped_or_repeated(size: int, lengths: list[int]) -> None:
    """It is cut into rows of nearly equal length."""
    rows = Rows.cut(offsets_of(10, size, 3), max_length=64)
    of_it = rows.document_R == 1
    assert rows.length_R[of_it].tolist() == lengths
    assert rows.start_R[of_it].tolist() == np.cumsum([0, *lengths])[:-1].tolist()


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


def test_rows_do_not_depend_on_how_many_documents_are_cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = many_rows()
    monkeypatch.setattr("clozeline.language.shards._DOCUMENTS_AT_A_TIME", 7)
    for one, other in zip(vars(whole).values(), vars(many_rows()).values(), strict=True):
        assert (one == other).all()
