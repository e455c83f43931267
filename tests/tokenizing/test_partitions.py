"""Claim: a file's own rows decide its partitions, and no range of keys has texts of two of them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.artifacts.preprocess.clean_text import DOC_ID, SCHEMA, TEXT
from clozeline.tokenizing import partitions
from clozeline.tokenizing.partitions import partitions_of, range_of

KEYS = [f"{number * 41:08x}00" for number in range(0, 100_000_000, 1_000_000)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_PARTITION_BYTES", 2000)
    monkeypatch.setattr(partitions, "TEXTS_A_RANGE", 10)


def write(path: Path, keys: list[str], row_group: int) -> Path:
    columns = [keys, [f"text {key}" * 5 for key in keys], [""] * len(keys), [""] * len(keys)]
    pq.write_table(pa.table(columns, SCHEMA), path, row_group_size=row_group)
    return path


@pytest.mark.parametrize("row_group", [3, 7, 1000])
def test_partitions_hold_every_row_in_order(tmp_path: Path, row_group: int) -> None:
    found = partitions_of(write(tmp_path / "a.parquet", KEYS, row_group))
    read = [texts.to_pylist() for one in found for (texts,) in one.columns(DOC_ID)]
    assert [key for keys in read for key in keys] == KEYS
    assert sum(one.num_rows for one in found) == len(KEYS)
    assert (len(found) > 1) == (row_group == 3), "larger row groups end inside a range"


def test_no_range_has_texts_of_two_partitions(tmp_path: Path) -> None:
    found = partitions_of(write(tmp_path / "a.parquet", KEYS, 3))
    numbers = [
        {range_of(key, one.num_ranges) for (keys,) in one.columns(DOC_ID) for key in keys.to_pylist()} for one in found
    ]
    assert len(found) > 3
    assert sum(map(len, numbers)) == len(set.union(*numbers))


@pytest.mark.parametrize(
    "keys", [KEYS[::-1], [f"row {number}" for number in range(100)]], ids=["falling", "no numbers"]
)
def test_keys_that_do_not_rise_are_not_parted(tmp_path: Path, keys: list[str]) -> None:
    (one,) = partitions_of(write(tmp_path / "a.parquet", keys, 3))
    assert next(one.texts())[0] == f"text {keys[0]}" * 5


def test_a_file_without_keys_is_one_partition(tmp_path: Path) -> None:
    pq.write_table(pa.table({TEXT: ["a" * 1500] * 9}), tmp_path / "a.parquet", row_group_size=2, use_dictionary=False)
    (one,) = partitions_of(tmp_path / "a.parquet")
    assert one.num_rows == 9


def test_a_file_without_rows_has_no_texts(tmp_path: Path) -> None:
    assert [texts for one in partitions_of(write(tmp_path / "a.parquet", [], 3)) for texts in one.texts()] == []
