"""Buckets of texts: texts with equal keys meet in one bucket, and a bucket fits in memory.

A bucket is a range of keys. Texts ordered by bucket, then by key, are therefore in the order of their keys for any
number of buckets.
"""

from bisect import bisect_left
from collections.abc import Sequence

_BUCKET_BYTES = 1_500_000
"""Approximate size of a bucket in bytes of raw text."""
_FEWEST, _MOST, _UNKNOWN = 8, 2**16, 128
_FILE_BYTES = 500_000_000
"""Most raw text whose clean text is in one file of each split."""
_PREFIX_VALUES = 2**16


def num_buckets_for(total_bytes: int) -> int:
    """Return a power of two that grows with the source, so that the size of a bucket does not; 0 bytes mean unknown."""
    if not total_bytes:
        return _UNKNOWN
    return min(max(1 << (total_bytes // _BUCKET_BYTES).bit_length(), _FEWEST), _MOST)


def num_ranges_for(total_bytes: int) -> int:
    """Return the number of ranges of keys with a file of each split each: a power of two, at most that of buckets."""
    return min(1 << (total_bytes // _FILE_BYTES).bit_length(), num_buckets_for(total_bytes))


def bucket_starts(sorted_keys: Sequence[bytes], num_buckets: int) -> list[int]:
    """Return the bounds of the buckets: bucket b is `keys[starts[b] : starts[b + 1]]`.

    The first two bytes of a key decide its bucket.
    """
    assert _PREFIX_VALUES % num_buckets == 0, num_buckets
    width = _PREFIX_VALUES // num_buckets
    inner = (bisect_left(sorted_keys, (bucket * width).to_bytes(2, "big")) for bucket in range(1, num_buckets))
    return [0, *inner, len(sorted_keys)]
