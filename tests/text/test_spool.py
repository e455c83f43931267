"""Claim: the spool returns texts unchanged, by bucket, with their place in the whole source."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from clozeline.records.files.identity import content_key
from clozeline.text import spool
from clozeline.text.buckets import bucket_starts, num_buckets_for
from clozeline.text.preparation import PREPARED, PreparedBatch
from clozeline.text.spool import BucketWriter, bucket_files, read_bucket, write_bucket

NUM_BUCKETS = 16


def batch_of(texts: list[str]) -> PreparedBatch:
    rows = sorted((content_key(text), place, place, text, "s", "t") for place, text in enumerate(texts))
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), PREPARED.types, strict=True)]
    return PreparedBatch(pa.record_batch(columns, PREPARED), len(texts), len(texts), 0, Counter())


@pytest.mark.parametrize("waiting_bytes", [1, 10_000_000])
def test_texts_lie_in_the_bucket_of_their_key_with_consecutive_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting_bytes: int
) -> None:
    monkeypatch.setattr(spool, "_WAITING_BYTES", waiting_bytes)
    texts = [f"text {number}" for number in range(90)]
    with BucketWriter(tmp_path, NUM_BUCKETS) as writer:
        for start in range(0, 90, 30):
            writer.append(batch_of(texts[start : start + 30]))
    buckets = [read_bucket(path) for path in bucket_files(tmp_path)]
    found = {
        text: number
        for bucket in buckets
        for text, number in zip(bucket["text"].to_pylist(), bucket["ordinal"].to_pylist(), strict=True)
    }
    assert found == {text: number for number, text in enumerate(texts)}
    prefixes = [{key.as_py()[0] >> 4 for key in bucket["key"]} for bucket in buckets]
    assert all(len(of_bucket) == 1 for of_bucket in prefixes)
    assert [min(of_bucket) for of_bucket in prefixes] == sorted(set.union(*prefixes))


def test_rewriting_a_bucket_replaces_everything_appended_before(tmp_path: Path) -> None:
    for _ in range(2):
        with BucketWriter(tmp_path, 1) as writer:
            writer.append(batch_of(["one", "two"]))
    (path,) = bucket_files(tmp_path)
    assert len(read_bucket(path)) == 4
    write_bucket(path, read_bucket(path).slice(0, 1))
    assert len(read_bucket(path)) == 1


def test_the_number_of_buckets_grows_and_their_size_does_not() -> None:
    sizes = [10**exponent for exponent in range(12)]
    assert all(size / num_buckets_for(size) <= 1_500_000 for size in sizes[:11])
    assert num_buckets_for(100_000_000_000) == 2**16
    assert num_buckets_for(10) == 8
    assert num_buckets_for(0) == 128


@pytest.mark.parametrize("num_buckets", [1, 8, 2**16])
def test_bucket_starts_divide_sorted_keys_by_bucket_range(num_buckets: int) -> None:
    keys = sorted(content_key(str(number)) for number in range(500))
    starts = bucket_starts(keys, num_buckets)
    assert (starts[0], starts[-1], len(starts)) == (0, 500, num_buckets + 1)
    for bucket in range(num_buckets):
        for key in keys[starts[bucket] : starts[bucket + 1]]:
            assert int.from_bytes(key[:2], "big") * num_buckets // 2**16 == bucket
