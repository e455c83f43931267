"""Claim: the documents decide the shards; neither partitions nor the order in which shards are written does."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.cluster.ledger import Ledger
from clozeline.records.clean_text import DOC_ID, SCHEMA
from clozeline.system.workers import Workers
from clozeline.tokenizing import shards
from clozeline.tokenizing.shards import EncodedFiles, partitions_of, write_shards, writing
from tests.make.texts import write_documents


@given(lengths=st.lists(st.integers(0, 9), max_size=20), partition=st.integers(1, 7), shard_tokens=st.integers(1, 12))
@settings(deadline=None, max_examples=40)
def test_a_shard_ends_before_the_document_that_does_not_fit(lengths, partition, shard_tokens) -> None:
    expected: list[list[int]] = []
    for length in lengths:
        if not expected or sum(expected[-1]) + length > shard_tokens:
            expected.append([])
        expected[-1].append(length)
    documents = [np.full(length, ordinal) for ordinal, length in enumerate(lengths)]
    how = {"bytes_per_token": 2, "shard_tokens": shard_tokens, "partition": partition}
    with TemporaryDirectory() as name:
        info = write_documents(Path(name), "train", documents, **how)
        files = sorted(Path(name).glob("*.bin"))
        found = [np.fromfile(file, "<u2").tolist() for file in files]
        offsets = [np.load(file.with_suffix(".offsets.npy")) for file in files]
    assert [np.diff(one).tolist() for one in offsets] == expected
    assert [id_ for shard in found for id_ in shard] == [id_ for document in documents for id_ in document]
    assert [shard.num_documents for shard in info.shards] == [len(shard) for shard in expected]
    assert info.text_bytes == 2 * info.num_tokens == 2 * sum(lengths)


class LastFirst(Workers):
    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return reversed([function(item) for item in reversed(list(items))])


def test_shards_that_are_written_in_another_order_have_the_same_bytes(tmp_path: Path) -> None:
    files, contents = EncodedFiles(tmp_path / "0", "uint16"), []
    files.folder.mkdir()
    with pytest.raises(AssertionError, match="does not fit"), writing(files) as append:
        append(np.array([1, 2**16]), [np.array([2]), np.array([3]), np.array([0])], [b""])
    assert not files.documents.exists(), "a partition that fails leaves no lengths"
    with writing(files) as append:
        append(np.arange(30), [np.full(10, 3), np.full(10, 5), np.zeros(10)], [b""] * 10)
    for name, workers in {"in order": Workers(None, 1), "last first": LastFirst(None, 1)}.items():
        out = tmp_path / name
        out.mkdir()
        write_shards([files], out, "train", 7, Ledger(tmp_path / f"ledger {name}", "", workers))
        contents.append([path.read_bytes() for path in sorted(out.iterdir())])
    assert contents[0] == contents[1]
    assert len(contents[0]) == 3 * 5


KEYS = [f"{number * 41:08x}00" for number in range(0, 100_000_000, 1_000_000)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_PARTITION_BYTES", 2000)


def write(path: Path, keys: list[str], row_group: int = 3, texts: list[str] | None = None) -> Path:
    texts = [f"text {key}" * 5 for key in keys] if texts is None else texts
    pq.write_table(pa.table([keys, texts, [""] * len(keys), [""] * len(keys)], SCHEMA), path, row_group_size=row_group)
    return path


@pytest.mark.parametrize(("row_group", "count"), [(3, 7), (40, 3), (1000, 1)])
def test_partitions_hold_every_row_in_order(tmp_path: Path, row_group: int, count: int) -> None:
    found = partitions_of(write(tmp_path / "a.parquet", KEYS, row_group))
    read = [texts.to_pylist() for one in found for (texts,) in one.columns(DOC_ID)]
    assert [key for keys in read for key in keys] == KEYS
    assert sum(one.num_rows for one in found) == len(KEYS)
    assert len(found) == count
    bounds = [bound for one in found for bound in one.doc_ids or ()]
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (KEYS[0], KEYS[-1])


def test_a_partition_is_known_by_its_texts(tmp_path: Path) -> None:
    texts = [f"text {key}" * 5 for key in KEYS]
    cases = (KEYS, texts), ([key[::-1] for key in KEYS], texts), (KEYS, [*texts[:-1], texts[-1].upper()])
    found = [partitions_of(write(tmp_path / "a.parquet", keys, texts=given)) for keys, given in cases]
    first, with_other_keys, changed = ([one.digest for one in some] for some in found)
    assert len(set(first)) == 7
    assert with_other_keys == first
    assert [one == other for one, other in zip(first, changed, strict=True)] == [True] * 6 + [False]
