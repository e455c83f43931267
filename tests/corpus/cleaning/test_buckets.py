"""Claim: spreading returns texts unchanged, by bucket, with their place in the whole source."""

from pathlib import Path

import pyarrow as pa
import pytest

from clozeline.corpus.cleaning import buckets
from clozeline.corpus.cleaning.buckets import SPREAD, bucket_starts, num_buckets_for, spread_items
from clozeline.corpus.cleaning.preparation import PREPARED, BatchCounts, BatchRecord, read_texts, write_texts
from clozeline.records.reading.streams import content_key

NUM_BUCKETS = 16


def batch_of(texts: list[str], path: Path) -> BatchRecord:
    rows = sorted((content_key(text), place, place, text, "s", "t") for place, text in enumerate(texts))
    table = pa.Table.from_pylist([dict(zip(PREPARED.names, row, strict=True)) for row in rows], PREPARED)
    write_texts(path, [table], compression="lz4")
    return BatchRecord(path.name, path, table.nbytes, 0, False, BatchCounts(len(texts)))


@pytest.mark.parametrize("spread_bytes", [1, 10_000_000])
def test_texts_lie_in_the_bucket_of_their_key_with_consecutive_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spread_bytes: int
) -> None:
    monkeypatch.setattr(buckets, "_SPREAD_BYTES", spread_bytes)
    texts = [f"text {number}" for number in range(90)]
    batches = [batch_of(texts[start : start + 30], tmp_path / f"batch-{start}") for start in (0, 30, 60)]
    items = spread_items([*batches, batch_of([], tmp_path / "empty")], NUM_BUCKETS)
    assert (len(items) == 1) == (spread_bytes > 1)
    found: dict[str, int] = {}
    for item in items:
        folder = tmp_path / item.name
        folder.mkdir()
        numbers = item.run(folder).facts
        assert numbers == sorted(set(numbers))
        for part, bucket in enumerate(numbers):
            there = read_texts(folder / SPREAD, [part])
            assert {key.as_py()[0] >> 4 for key in there["key"]} == {bucket}
            found |= dict(zip(there["text"].to_pylist(), there["ordinal"].to_pylist(), strict=True))
    assert found == {text: number for number, text in enumerate(texts)}


def test_the_number_of_buckets_grows_and_their_size_does_not() -> None:
    sizes = [10**exponent for exponent in range(12)]
    assert all(size / num_buckets_for(size) <= 1_500_000 for size in sizes[:11])
    assert [num_buckets_for(size) for size in (100_000_000_000, 10, 0)] == [2**16, 8, 128]


@pytest.mark.parametrize("num_buckets", [1, 8, 2**16])
def test_bucket_starts_divide_sorted_keys_by_bucket_range(num_buckets: int) -> None:
    keys = sorted(content_key(str(number)) for number in range(500))
    starts = bucket_starts(keys, num_buckets)
    assert (starts[0], starts[-1], len(starts)) == (0, 500, num_buckets + 1)
    for bucket in range(num_buckets):
        for key in keys[starts[bucket] : starts[bucket + 1]]:
            assert int.from_bytes(key[:2], "big") * num_buckets // 2**16 == bucket
