"""Claim: the documents decide the shards; neither partitions nor the order in which shards are written does."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.tokenizing.shards import EncodedFiles, EncodedWriter, write_shards
from tests.written_shards import write_documents


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


def test_shards_that_are_written_in_another_order_have_the_same_bytes(tmp_path: Path) -> None:
    def last_first(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return reversed([function(item) for item in reversed(list(items))])

    files = EncodedFiles(tmp_path / "0", "uint16")
    with EncodedWriter(files) as writer:
        writer.append(np.arange(30), np.full(10, 3), np.full(10, 5))
    for name, spread in {"in order": map, "last first": last_first}.items():
        (tmp_path / name).mkdir()
        write_shards([files], tmp_path / name, "train", 7, spread)
    one, other = (
        [path.read_bytes() for path in sorted((tmp_path / name).iterdir())] for name in ("in order", "last first")
    )
    assert one == other
    assert len(one) == 3 * 5


def test_a_partition_that_fails_leaves_no_lengths(tmp_path: Path) -> None:
    files = EncodedFiles(tmp_path / "0", "uint16")
    with pytest.raises(AssertionError, match="does not fit"), EncodedWriter(files) as writer:
        writer.append(np.array([1, 2**16]), np.array([2]), np.array([3]))
    assert not files.documents.exists()
