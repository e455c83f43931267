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
    split = write_documents(
        folder,
        "train",
        texts,
        bytes_per_token=3,
        shard_tokens=shard_tokens,
        dtype=dtype_for(vocab_size),
        partition=partition,
    )
    info = TokensInfo.of(
        vocab_size=vocab_size,
        tokenizer_sha256="",
        special_ids=SPECIAL,
        splits={"train": split},
    )
    info.write(folder / INFO_NAME)
    return folder


@pytest.fixture(params=[100_000, 200, 1], ids=["one shard", "several shards", "a shard for each document"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[TokenShards, list[np.ndarray]]:
    texts = documents(100)
    return TokenShards.open(write(tmp_path / "tokens", texts, shard_tokens=request.param), "train"), texts


def test_every_document_survives_a_round_trip(written: tuple[TokenShards, list[np.ndarray]]) -> None:
    shards, texts = written
    assert shards.num_documents == len(texts)
    assert shards.num_tokens == sum(map(len, texts))
    assert shards.text_bytes == 3 * shards.num_tokens
    assert shards.document_bytes.tolist() == [3 * len(text) for text in texts]
    for ordinal, text in enumerate(texts):
        np.testing.assert_array_equal(shards.document(ordinal), text)


def test_any_range_of_tokens_equals_that_range_of_the_corpus(written: tuple[TokenShards, list[np.ndarray]]) -> None:
    shards, texts = written
    whole = np.concatenate(texts)
    draw = np.random.default_rng(1)
    for start, stop in np.sort(draw.integers(0, len(whole) + 1, size=(200, 2))):
        np.testing.assert_array_equal(shards.tokens(int(start), int(stop)), whole[start:stop])


def test_take_gathers_spans_back_to_back_even_across_shards(written: tuple[TokenShards, list[np.ndarray]]) -> None:
    shards, texts = written
    whole = np.concatenate(texts)
    draw = np.random.default_rng(2)
    starts = draw.integers(0, len(whole) - 60, size=50)
    lengths = draw.integers(0, 60, size=50)
    expected = np.concatenate([whole[start : start + length] for start, length in zip(starts, lengths, strict=True)])
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
    assert dtype_for(65_536) == "uint16"
    assert dtype_for(65_537) == "uint32"
    text = np.array([5, 70_000])
    shards = TokenShards.open(write(tmp_path / "tokens", [text], shard_tokens=10, vocab_size=70_001), "train")
    assert shards.document(0).tolist() == [5, 70_000]


def test_a_corpus_of_empty_documents_can_be_read(tmp_path: Path) -> None:
    shards = TokenShards.open(write(tmp_path / "tokens", [np.zeros(0, int)] * 3, shard_tokens=10), "train")
    assert (shards.num_documents, shards.num_tokens, len(shards.document(2))) == (3, 0, 0)


def test_a_pickle_carries_the_path_not_the_corpus(tmp_path: Path) -> None:
    shards = TokenShards.open(write(tmp_path / "tokens", documents(100), shard_tokens=500), "train")
    pickled = ForkingPickler.dumps(shards)
    assert len(pickled) < 500
    np.testing.assert_array_equal(ForkingPickler.loads(pickled).document(9), shards.document(9))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-6])


def test_an_unknown_split_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no split `test`"):
        TokenShards.open(write(tmp_path / "tokens", documents(3), shard_tokens=100), "test")


BOUNDARY = SpecialIds(pad=0, cls=2, sep=3, mask=4, unk=1, every=(0, 1, 2, 3, 4))


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


def test_a_document_is_cut_into_rows_of_nearly_equal_length() -> None:
    rows = Rows.cut(offsets_of(10, 0, 63, 62), max_length=64)
    assert rows.document_R.tolist() == [0, 2, 2, 3]
    assert rows.start_R.tolist() == [0, 0, 32, 0]
    assert rows.length_R.tolist() == [10, 32, 31, 62]


@pytest.mark.parametrize("size", [1, 61, 62, 63, 124, 125, 1000])
def test_no_token_of_a_document_is_dropped_or_repeated(size: int) -> None:
    rows = Rows.cut(offsets_of(size), max_length=64)
    covered = [
        place
        for start, length in zip(rows.start_R, rows.length_R, strict=True)
        for place in range(start, start + length)
    ]
    assert covered == list(range(size))
    assert rows.length_R.max() <= 62


def test_a_batch_frames_each_row_and_records_the_origin_of_each_token() -> None:
    offsets = offsets_of(100, 3, 5)
    rows = Rows.cut(offsets, max_length=64)
    tokens = gather(CountingTokens(offsets), rows, np.array([2, 3]))
    assert tokens.padded(tokens.input_ids_N, BOUNDARY).tolist() == [
        [2, 100, 101, 102, 3, 0, 0],
        [2, 103, 104, 105, 106, 107, 3],
    ]
    assert tokens.document_N.tolist() == [1, 1, 1, 2, 2, 2, 2, 2]
    assert tokens.position_N.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]


def test_positions_count_from_the_start_of_the_document_not_of_the_row() -> None:
    offsets = offsets_of(100)
    rows = Rows.cut(offsets, max_length=64)
    tokens = gather(CountingTokens(offsets), rows, np.array([1]))
    assert tokens.position_N.tolist() == list(range(50, 100))


def test_rows_do_not_depend_on_how_many_documents_are_cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = many_rows()
    monkeypatch.setattr("clozeline.language.shards._DOCUMENTS_AT_A_TIME", 7)
    parts = many_rows()
    assert (whole.document_R == parts.document_R).all()
    assert (whole.start_R == parts.start_R).all()
    assert (whole.length_R == parts.length_R).all()
