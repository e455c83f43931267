"""Claim: the documents decide the shards; neither partitions nor the order in which shards are written does."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.cluster.ledger import Ledger
from clozeline.system.workers import Workers
from clozeline.tokenizing.shards import EncodedFiles, EncodedWriter, write_shards
from tests.make.texts import write_documents


def shards_by_hand(lengths: list[int], shard_tokens: int) -> list[list[int]]:
    shards: list[list[int]] = []
    for length in lengths:
        if not shards or sum(shards[-1]) + length > shard_tokens:
            shards.append([])
        shards[-1].append(length)
    return shards


@given(lengths=st.lists(st.integers(0, 9), max_size=20), partition=st.integers(1, 7), shard_tokens=st.integers(1, 12))
@settings(deadline=None, max_examples=40)
def test_a_shard_ends_before_the_document_that_does_not_fit(
    lengths: list[int], partition: int, shard_tokens: int
) -> None:
    documents = [np.full(length, ordinal) for ordinal, length in enumerate(lengths)]
    with TemporaryDirectory() as name:
        info = write_documents(
            Path(name), "train", documents, bytes_per_token=2, shard_tokens=shard_tokens, partition=partition
        )
        files = sorted(Path(name).glob("*.bin"))
        found = [np.fromfile(file, "<u2").tolist() for file in files]
        offsets = [np.load(file.with_suffix(".offsets.npy")) for file in files]
    expected = shards_by_hand(lengths, shard_tokens)
    assert [np.diff(one).tolist() for one in offsets] == expected
    assert [id_ for shard in found for id_ in shard] == [id_ for document in documents for id_ in document]
    assert [shard.num_documents for shard in info.shards] == [len(shard) for shard in expected]
    assert info.text_bytes == 2 * info.num_tokens == 2 * sum(lengths)


class LastFirst(Workers):
    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return reversed([function(item) for item in reversed(list(items))])


@pytest.fixture
def files(tmp_path: Path) -> EncodedFiles:
    found = EncodedFiles(tmp_path / "0", "uint16")
    found.folder.mkdir()
    return found


def test_shards_that_are_written_in_another_order_have_the_same_bytes(tmp_path: Path, files: EncodedFiles) -> None:
    with EncodedWriter(files) as writer:
        writer.append(np.arange(30), [np.full(10, 3), np.full(10, 5), np.zeros(10)], [b""] * 10)
    for name, workers in {"in order": Workers(None, 1), "last first": LastFirst(None, 1)}.items():
        (tmp_path / name).mkdir()
        write_shards([files], tmp_path / name, "train", 7, Ledger(tmp_path / f"ledger {name}", "", workers))
    one, other = (
        [path.read_bytes() for path in sorted((tmp_path / name).iterdir())] for name in ("in order", "last first")
    )
    assert one == other
    assert len(one) == 3 * 5


def test_a_partition_that_fails_leaves_no_lengths(files: EncodedFiles) -> None:
    with pytest.raises(AssertionError, match="does not fit"), EncodedWriter(files) as writer:
        writer.append(np.array([1, 2**16]), [np.array([2]), np.array([3]), np.array([0])], [b""])
    assert not files.documents.exists()
