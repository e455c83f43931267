"""Contamination: test texts that also occur in the training text, verbatim or as near-duplicates.

One pass compares every training text, in memory that does not grow with the training text. Similarity is measured by
word shingles, as in `near_duplicates`. A test has few texts, so all pairs can be found instead of most: prefix
filtering (Bayardo, Ma, Srikant 2007, "Scaling up all pairs similarity search"). A text with a share s of another's n
shingles holds at least one of any n - ⌈s n⌉ + 1 of them, so only the rarest are looked for.

Suffixes of names give the shape: N test texts, T training texts of a batch, S shingles of all texts, K looked-for
shingles, X prefixes of shingles, F shingles that may be looked for, P pairs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.words.numbers.runs import run_positions
from clozeline.words.shingles import PlainSets, plain_sets

SIMILARITY = 0.8
"""Limit of contamination: Jaccard similarity, or contained share of the test text's shingles, ≥ 0.8."""
MIN_CONTAINED_SHINGLES = 10
"""Twelve words: shorter texts occur in some long text by chance."""
_BATCH_TEXTS = 500
_PREFIX_BITS = 22
"""Bits of a hash that index a table. One look-up rules out nearly every shingle that is not looked for."""
_PAIRS_AT_A_TIME = 2_000
Hashes = NDArray[np.uint32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Contamination:
    """Contamination counts of a test set."""

    num_texts: int
    num_near_duplicates: int
    """Texts that are near-duplicates of a training text."""
    num_contained: int
    """Other texts, nearly all of whose shingles occur in one longer training text."""
    place_of_near: tuple[int, ...] = field(default=(), compare=False)
    """Places of the near-duplicates among the test texts."""

    def __str__(self) -> str:
        return (
            f"{self.num_near_duplicates:,} are near-duplicates of a training text and {self.num_contained:,} more are "
            f"contained in one: {self.fraction:.1%}"
        )

    @property
    def fraction(self) -> float:
        return (self.num_near_duplicates + self.num_contained) / max(self.num_texts, 1)


def contamination(test: Sequence[str], training: Iterable[list[str]]) -> Contamination:
    """Compare each text of `test` with each of `training`, which comes in batches."""
    if not test:
        return Contamination(0, 0, 0)
    probes = _Probes.of(test)
    for batch in training:
        probes.look_into(plain_sets(batch))
    contained_N = probes.is_contained_N & ~probes.is_near_N
    near = tuple(np.flatnonzero(probes.is_near_N).tolist())
    return Contamination(len(test), len(near), int(contained_N.sum()), near)


def in_batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield batches of training texts for `contamination`."""
    for start in range(0, len(texts), _BATCH_TEXTS):
        yield list(texts[start : start + _BATCH_TEXTS])


@dataclass(frozen=True)
class _Probes:
    """Texts of the test, and the shingles by which each is looked for."""

    sets: PlainSets
    key_K: Hashes
    """Hashes of the looked-for shingles, sorted."""
    text_K: Numbers
    is_prefix_X: NDArray[np.bool_] = field(init=False)
    """Whether any of `key_K` has this prefix."""
    is_near_N: NDArray[np.bool_] = field(init=False)
    is_contained_N: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("is_near_N", "is_contained_N"):
            object.__setattr__(self, name, np.zeros(len(self.sets.counts_N), dtype=bool))
        object.__setattr__(self, "is_prefix_X", np.zeros(1 << _PREFIX_BITS, dtype=bool))
        self.is_prefix_X[_prefixes(self.key_K)] = True

    @classmethod
    def of(cls, test: Sequence[str]) -> Self:
        sets = plain_sets(list(test))
        _, kind_S, times = np.unique(sets.hashes_S, return_inverse=True, return_counts=True)
        text_S = np.repeat(np.arange(len(sets.counts_N)), sets.counts_N)
        rarest_S = np.lexsort((sets.hashes_S, times[kind_S], text_S))
        place_S = np.arange(len(text_S)) - np.repeat(sets.starts_N, sets.counts_N)
        looked_for_N = sets.counts_N - np.ceil(SIMILARITY * sets.counts_N - 1e-9).astype(np.int64) + 1
        chosen_K = rarest_S[place_S < looked_for_N[text_S]]
        chosen_K = chosen_K[np.argsort(sets.hashes_S[chosen_K], kind="stable")]
        return cls(sets, sets.hashes_S[chosen_K], text_S[chosen_K])

    def look_into(self, training: PlainSets) -> None:
        """Mark the test texts that are similar to a training text of the batch, or contained in one."""
        test_P, training_P = self._candidates(training)
        for start in range(0, len(test_P), _PAIRS_AT_A_TIME):
            part = slice(start, start + _PAIRS_AT_A_TIME)
            self._compare(training, test_P[part], training_P[part])

    def _candidates(self, training: PlainSets) -> tuple[Numbers, Numbers]:
        """Return the pairs that share a looked-for shingle and whose sizes allow enough shared shingles."""
        found_F = np.flatnonzero(self.is_prefix_X[_prefixes(training.hashes_S)])
        key_F = training.hashes_S[found_F]
        first_F = np.searchsorted(self.key_K, key_F, side="left")
        times_F = np.searchsorted(self.key_K, key_F, side="right") - first_F
        test_P = self.text_K[run_positions(first_F, times_F)]
        text_S = np.repeat(np.arange(len(training.counts_N)), training.counts_N)
        training_P = np.repeat(text_S[found_F], times_F)
        pairs_P = np.unique(test_P * len(training.counts_N) + training_P)
        test_P, training_P = np.divmod(pairs_P, len(training.counts_N))
        ours_P, theirs_P = self.sets.counts_N[test_P], training.counts_N[training_P]
        can_be_near_P = (theirs_P <= ours_P / SIMILARITY + 1e-9) | (ours_P >= MIN_CONTAINED_SHINGLES)
        is_open_P = (theirs_P >= SIMILARITY * ours_P - 1e-9) & can_be_near_P & ~self.is_near_N[test_P]
        return test_P[is_open_P], training_P[is_open_P]

    def _compare(self, training: PlainSets, test_P: Numbers, training_P: Numbers) -> None:
        pair_P = np.arange(len(test_P), dtype=np.uint64) << np.uint64(32)
        keys = [
            np.repeat(pair_P, sets.counts_N[chosen_P]) | sets.hashes_of(chosen_P)
            for sets, chosen_P in ((self.sets, test_P), (training, training_P))
        ]
        keys_S = np.sort(np.concatenate(keys), kind="stable")  # a stable sort only merges the two sorted runs
        shared_S = (keys_S[1:][keys_S[1:] == keys_S[:-1]] >> np.uint64(32)).astype(np.int64)
        common_P = np.bincount(shared_S, minlength=len(test_P))
        ours_P, theirs_P = self.sets.counts_N[test_P], training.counts_N[training_P]
        self.is_near_N[test_P[common_P >= SIMILARITY * (ours_P + theirs_P - common_P) - 1e-9]] = True
        is_contained_P = (common_P >= SIMILARITY * ours_P - 1e-9) & (ours_P >= MIN_CONTAINED_SHINGLES)
        self.is_contained_N[test_P[is_contained_P]] = True


def _prefixes(hashes_S: Hashes) -> Hashes:
    """Return the highest bits of each hash."""
    return hashes_S >> np.uint32(32 - _PREFIX_BITS)
