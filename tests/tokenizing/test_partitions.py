"""Claim: a file's own rows decide its partitions; a partition is known by its texts, wherever they lie."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.records.clean_text import DOC_ID, SCHEMA, TEXT
from clozeline.tokenizing import shards
from clozeline.tokenizing.shards import partitions_of

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
    first = [one.digest for one in partitions_of(write(tmp_path / "a.parquet", KEYS, texts=texts))]
    assert len(set(first)) == 7
    other_keys = write(tmp_path / "b.parquet", [key[::-1] for key in KEYS], texts=texts)
    assert [one.digest for one in partitions_of(other_keys)] == first
    texts[-1] = texts[-1].upper()
    changed = [one.digest for one in partitions_of(write(tmp_path / "a.parquet", KEYS, texts=texts))]
    assert [one == other for one, other in zip(first, changed, strict=True)] == [True] * 6 + [False]


def test_a_file_without_keys_has_partitions_without_bounds(tmp_path: Path) -> None:
    pq.write_table(pa.table({TEXT: ["a" * 1500] * 9}), tmp_path / "a.parquet", row_group_size=2, use_dictionary=False)
    found = partitions_of(tmp_path / "a.parquet")
    assert [one.num_rows for one in found] == [2, 2, 2, 2, 1]
    assert {one.doc_ids for one in found} == {None}


def test_a_file_without_rows_has_no_texts(tmp_path: Path) -> None:
    assert [texts for one in partitions_of(write(tmp_path / "a.parquet", [])) for texts in one.texts()] == []
