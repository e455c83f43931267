"""How texts are divided by their keys: those of the same content meet in one bucket, and a bucket fits in memory.

A bucket is a range of keys, so texts in the order of buckets, then keys, are in the order of their keys, however many
buckets there are.
"""

from bisect import bisect_left
from collections.abc import Sequence

_BUCKET_BYTES = 1_500_000
"""Of raw text, about."""
_FEWEST, _MOST, _UNKNOWN = 8, 2**16, 128
_PREFIX_VALUES = 2**16


def num_buckets_for(total_bytes: int) -> int:
    """A power of two that grows with the source, so that buckets do not; 0 bytes are of a size that nobody knows."""
    if not total_bytes:
        return _UNKNOWN
    return min(max(1 << (total_bytes // _BUCKET_BYTES).bit_length(), _FEWEST), _MOST)


def bucket_starts(sorted_keys: Sequence[bytes], num_buckets: int) -> list[int]:
    """Bucket b of sorted keys is `keys[starts[b] : starts[b + 1]]`; the first two bytes of a key decide."""
    assert _PREFIX_VALUES % num_buckets == 0, num_buckets
    width = _PREFIX_VALUES // num_buckets
    inner = (bisect_left(sorted_keys, (bucket * width).to_bytes(2, "big")) for bucket in range(1, num_buckets))
    return [0, *inner, len(sorted_keys)]
