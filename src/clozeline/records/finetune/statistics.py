"""Confidence intervals and tests over items or documents, and how far two distributions are apart.

Intervals over documents are percentiles of a bootstrap; tests flip signs. Documents are drawn, not tokens: the tokens
of one document are not independent trials. The two distributions are over the same buckets.

Shapes: N items, D documents or blocks of them, K figures, S samples.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from clozeline.records.record import Record

# 0.975 quantile of the normal distribution, for a two-sided interval of 95 %.
_NORMAL_QUANTILE_95 = 1.959963984540054
_NUM_SAMPLES = 1000
_SEED = 0

# Function: indices of items → the figure on them.
Figure = Callable[[NDArray[np.int64]], float]

# Number of draws held in memory at once.
_AT_A_TIME = 1 << 15
_TAILS = (0.025, 0.975)
Floats = NDArray[np.float64]


class Interval(Record):
    """Ends of a 95 % interval, in a record."""

    low: float
    high: float


def wilson_interval(num_hits: int, num_trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); unlike ±1.96 standard errors it holds near 0 and 1."""
    z2 = _NORMAL_QUANTILE_95**2
    share = num_hits / num_trials
    middle = (share + z2 / (2 * num_trials)) / (1 + z2 / num_trials)
    half = math.sqrt(share * (1 - share) / num_trials + z2 / (4 * num_trials**2)) / (1 + z2 / num_trials)
    half *= _NORMAL_QUANTILE_95
    return max(middle - half, 0.0), min(middle + half, 1.0)


def paired_interval(ours: Figure, baseline: Figure, num_items: int) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two figures (`ours` - `baseline`) on the same items."""
    return bootstrap_interval(lambda places_N: ours(places_N) - baseline(places_N), num_items)


def bootstrap_interval(figure: Figure, num_items: int) -> tuple[float, float]:
    """Return the 95 % interval by the percentile bootstrap (Efron 1979), for a figure that is not a share, such as F1.

    Args:
        figure: indices of items, drawn with replacement → the figure on them. Samples on which it is NaN (the
            correlation of constant values) are left out.
    """
    random = np.random.default_rng(_SEED)
    values_S = np.array([figure(random.integers(num_items, size=num_items)) for _ in range(_NUM_SAMPLES)])
    values_S = values_S[np.isfinite(values_S)]
    if len(values_S) == 0:
        return math.nan, math.nan
    low, high = np.quantile(values_S, (0.025, 0.975))
    return float(low), float(high)


def ratio_intervals(numerators_DK: Floats, denominators_DK: Floats, *, seed: int, num_samples: int) -> Floats:
    """Return the low and high ends, `[2, K]`, of 95 % intervals of each sum of numerators / sum of denominators.

    The percentile method of Efron and Tibshirani (1993, "An Introduction to the Bootstrap", section 13.3): documents
    are drawn with replacement, a numerator and its denominator together.
    """
    ratio_SK = _ratios(numerators_DK, denominators_DK, seed=seed, num_samples=num_samples)
    ends_2K: Floats = np.nanquantile(ratio_SK, _TAILS, axis=0)
    return ends_2K


def difference_interval(
    numerators_D2: Floats, denominators_D2: Floats, *, seed: int, num_samples: int
) -> tuple[float, float]:
    """Return the ends of the 95 % interval of the first ratio minus the second, by the same method.

    Both ratios are of the same documents, which are drawn together, so the interval is that of a paired test.
    """
    ratio_S2 = _ratios(numerators_D2, denominators_D2, seed=seed, num_samples=num_samples)
    low, high = np.nanquantile(ratio_S2[:, 0] - ratio_S2[:, 1], _TAILS).tolist()
    return low, high


def _ratios(numerators_DK: Floats, denominators_DK: Floats, *, seed: int, num_samples: int) -> Floats:
    """Return `ratio_SK`, the ratios of each sample; NaN where a sample has no denominator."""
    num_figures = numerators_DK.shape[1]
    both_DK = np.concatenate([numerators_DK, denominators_DK], axis=1)
    drawn_SK = np.concatenate([times_SD @ both_DK for times_SD in _draws(len(both_DK), seed, num_samples)])
    below_SK = drawn_SK[:, num_figures:]
    # A sample of documents without any target is ignored.
    ratio_SK: Floats = np.full_like(below_SK, np.nan)
    np.divide(drawn_SK[:, :num_figures], below_SK, out=ratio_SK, where=below_SK > 0)
    return ratio_SK


def sign_flip_p_value(difference_D: Floats, *, seed: int, num_samples: int) -> float:
    """Return the two-sided p-value of paired differences by document under no difference: a permutation test.

    If two models are equal, each difference could as well have the other sign (Fisher 1935; Dror et al. 2018, "The
    hitchhiker's guide to testing statistical significance in NLP", section 3.2). The p-value is never 0, because the
    observed signs count among the samples (Phipson and Smyth 2010).
    """
    random = np.random.Generator(np.random.Philox(key=[seed, 2**63 + len(difference_D)]))
    total, as_large = abs(difference_D.sum()), 1
    scale = 1e-12 * np.abs(difference_D).sum()  # tolerance for equal sums added in another order
    at_a_time = max(_AT_A_TIME // len(difference_D), 1)
    for start in range(0, num_samples, at_a_time):
        shape = (min(at_a_time, num_samples - start), len(difference_D))
        sign_SD = 2.0 * random.integers(2, size=shape) - 1
        as_large += int((np.abs(sign_SD @ difference_D) >= total - scale).sum())
    return as_large / (num_samples + 1)


def _draws(num_documents: int, seed: int, num_samples: int) -> Iterator[Floats]:
    """Yield how often each document is in each sample, some samples at a time; chunks do not change the draws."""
    random = np.random.Generator(np.random.Philox(key=[seed, num_documents]))
    at_a_time = max(_AT_A_TIME // num_documents, 1)
    for start in range(0, num_samples, at_a_time):
        shape = (min(at_a_time, num_samples - start), num_documents)
        drawn_SD = random.integers(num_documents, size=shape) + np.arange(shape[0])[:, None] * num_documents
        yield np.bincount(drawn_SD.ravel(), minlength=drawn_SD.size).reshape(shape).astype(np.float64)


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
