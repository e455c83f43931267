"""How far two distributions over the same buckets are apart."""

import math
from collections.abc import Mapping


def stability_index(expected: Mapping[str, int], actual: Mapping[str, int]) -> float:
    """Return the population stability index, the sum of (a - e) ln(a / e) over the shares of the buckets.

    It is the Kullback-Leibler divergence in both directions (Lin 2017, "Examining distributional shifts by using
    population stability index"); 0 for equal shares. Each bucket gets half a count more, so that an empty one does not
    make it infinite.
    """
    buckets = [*expected, *(bucket for bucket in actual if bucket not in expected)]
    expected_shares, actual_shares = _shares(expected, buckets), _shares(actual, buckets)
    return sum((a - e) * math.log(a / e) for e, a in zip(expected_shares, actual_shares, strict=True))


def _shares(counts: Mapping[str, int], buckets: list[str]) -> list[float]:
    total = sum(counts.values()) + 0.5 * len(buckets)
    return [(counts.get(bucket, 0) + 0.5) / total for bucket in buckets]
