"""Similarity of texts by word shingles: MinHash signatures, bands that near-duplicates share, and contamination.

Contamination is a test text that also occurs in the training text, verbatim or as a near-duplicate. One pass compares
every training text, in memory that does not grow with the training text. A test has few texts, so all pairs can be
found instead of most: prefix filtering (Bayardo, Ma, Srikant 2007, "Scaling up all pairs similarity search"). A text
with a share s of another's n shingles holds at least one of any n - ⌈s n⌉ + 1 of them, so only the rarest are looked
for.

Suffixes of names give the shape: N texts, W words of all texts, S shingles of all texts, P permutations, B bands. For
contamination: N test texts, T training texts of a batch, K looked-for shingles, X prefixes of shingles, F shingles that
may be looked for, P pairs.
"""

import re
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, starmap
from struct import Struct
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rensa import RMinHash

from clozeline.records.words.bytes import ByteClasses, word_hashes
from clozeline.records.words.numbers import mixed, run_positions

NUM_PERMUTATIONS = 128
# Short texts need short shingles: one changed word spoils three shingles of three words, but five of five words.
_SHINGLE_WORDS = 3
# Chinese and Japanese have no spaces between words, so there each character is a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|\w+")
_ASCII = ByteClasses.of(
    blanks="".join(chr(code) for code in range(128) if not (chr(code).isalnum() or chr(code) == "_")),
    replaced=dict(zip(string.ascii_uppercase, string.ascii_lowercase, strict=True)),
)
_MIN_RECALL = 0.97
_SIGNATURE_SEED = 1
# Takes half as long as NumPy for this many Python integers.
_SIGNATURE = Struct(f"={NUM_PERMUTATIONS}I")
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], dtype=np.uint64)

# Limit of contamination: Jaccard similarity, or contained share of the test text's shingles, ≥ 0.8.
SIMILARITY = 0.8
# Twelve words: shorter texts occur in some long text by chance.
MIN_CONTAINED_SHINGLES = 10
_BATCH_TEXTS = 500
# Bits of a hash that index a table. One look-up rules out nearly every shingle that is not looked for.
_PREFIX_BITS = 22
_PAIRS_AT_A_TIME = 2_000
Hashes = NDArray[np.uint32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class PlainSets:
    """Shingle sets of many texts: `hashes_S` sorted and unique within each text, `counts_N` the size of each set."""

    hashes_S: Hashes
    counts_N: Numbers

    @property
    def starts_N(self) -> Numbers:
        starts_N: Numbers = np.cumsum(self.counts_N) - self.counts_N
        return starts_N

    def hashes_of(self, texts_P: Numbers) -> Hashes:
        """Return the sets of some texts, back to back."""
        return self.hashes_S[run_positions(self.starts_N[texts_P], self.counts_N[texts_P])]


@dataclass(frozen=True)
class ShingleSets(PlainSets):
    """Shingle sets of many texts, with their bands."""

    bands_NB: NDArray[np.uint64]


@dataclass(frozen=True)
class Banding:
    """Locality-sensitive hashing: candidates agree on all `num_rows` rows of one of `num_bands` bands."""

    num_bands: int
    num_rows: int

    @classmethod
    def finding(cls, similarity: float) -> "Banding":
        """Return the most selective banding that finds at least 97 % of the pairs of this Jaccard similarity.

        A pair of similarity s is found with probability 1 - (1 - s^r)^b (Leskovec, Rajaraman, Ullman: Mining of Massive
        Datasets, section 3.4.2).
        """
        for num_rows in range(NUM_PERMUTATIONS, 1, -1):
            num_bands = NUM_PERMUTATIONS // num_rows
            if 1 - (1 - similarity**num_rows) ** num_bands >= _MIN_RECALL:
                return cls(num_bands, num_rows)
        return cls(NUM_PERMUTATIONS, 1)


def shingle_sets(texts_N: Any, banding: Banding) -> ShingleSets:
    """Shingle, sketch and band a batch of texts (Arrow strings). The result for a text does not depend on its batch."""
    shingles_S, num_shingles_N = _shingles(*_hashed_words(texts_N))
    hashes_S, counts_N = _unique_within_text(shingles_S, num_shingles_N)
    return ShingleSets(hashes_S, counts_N, _bands(shingles_S, num_shingles_N, banding))


def plain_sets(texts: list[str]) -> PlainSets:
    """Return the sets of `shingle_sets` without the signatures, which take most of its time."""
    # A lone surrogate, which Arrow refuses, is no more of a word than a question mark.
    whole = [text if text.isascii() else text.encode("utf-8", "replace").decode() for text in texts]
    return PlainSets(*_unique_within_text(*_shingles(*_hashed_words(pa.array(whole, pa.string())))))


def _hashed_words(texts_N: Any) -> tuple[NDArray[np.uint64], Numbers]:
    """Return the word hashes of all texts back to back, and each text's number of words, padded with `""` to three.

    ASCII texts are cut all at once; texts without words or with other characters one by one.
    """
    is_ascii_N = pc.equal(pc.binary_length(texts_N), pc.utf8_length(texts_N))
    cut = _ASCII.cut(texts_N.filter(is_ascii_N))
    num_words_N = np.zeros(len(texts_N), dtype=np.int64)
    num_words_N[is_ascii_N.to_numpy(zero_copy_only=False)] = cut.num_words_D
    is_cut_N = num_words_N > 0
    others = [_WORD.findall(text.casefold()) or [text] for text in texts_N.filter(pa.array(~is_cut_N)).to_pylist()]
    num_words_N[~is_cut_N] = [len(words) for words in others]
    num_padded_N = np.maximum(num_words_N, _SHINGLE_WORDS)
    start_N = np.cumsum(num_padded_N) - num_padded_N
    words_W = np.full(int(num_padded_N.sum()), word_hashes(pa.array([""]))[0], dtype=np.uint64)
    words_W[run_positions(start_N[is_cut_N], num_words_N[is_cut_N])] = word_hashes(cut.distinct_U)[cut.index_W]
    spelled = pa.array(chain.from_iterable(others), pa.string()).dictionary_encode()
    hashes_U = word_hashes(spelled.dictionary)
    words_W[run_positions(start_N[~is_cut_N], num_words_N[~is_cut_N])] = hashes_U[spelled.indices.to_numpy()]
    return words_W, num_padded_N


def _shingles(words_W: NDArray[np.uint64], num_words_N: Numbers) -> tuple[NDArray[np.uint64], Numbers]:
    starts_W = np.ones(len(words_W), dtype=bool)
    ends_N = np.cumsum(num_words_N)
    for distance in range(1, _SHINGLE_WORDS):
        starts_W[ends_N - distance] = False
    shingles_W = np.zeros(len(words_W), dtype=np.uint64)
    for place, factor in enumerate(_FACTORS):
        shingles_W[: len(words_W) - place] += words_W[place:] * factor
    return mixed(shingles_W[starts_W]), num_words_N - (_SHINGLE_WORDS - 1)


def _unique_within_text(shingles_S: NDArray[np.uint64], num_shingles_N: Numbers) -> tuple[Hashes, Numbers]:
    num_texts = len(num_shingles_N)
    text_S = np.repeat(np.arange(num_texts, dtype=np.uint64), num_shingles_N)
    keys_S = np.sort((text_S << np.uint64(32)) | (shingles_S >> np.uint64(32)))
    keys_S = keys_S[np.append(True, keys_S[1:] != keys_S[:-1])]
    counts_N = np.bincount((keys_S >> np.uint64(32)).astype(np.int64), minlength=num_texts)
    return keys_S.astype(np.uint32), counts_N


def _bands(shingles_S: NDArray[np.uint64], num_shingles_N: Numbers, banding: Banding) -> NDArray[np.uint64]:
    offsets = np.concatenate([[0], np.cumsum(num_shingles_N)]).astype(np.uint64)
    digests = RMinHash.digest_matrix_from_flat_token_hashes(shingles_S, offsets, NUM_PERMUTATIONS, _SIGNATURE_SEED)
    signatures = b"".join(starmap(_SIGNATURE.pack, digests.to_rows()))
    signature_NP = np.frombuffer(signatures, np.uint32).reshape(-1, NUM_PERMUTATIONS)
    used_NBR = signature_NP[:, : banding.num_bands * banding.num_rows].reshape(-1, banding.num_bands, banding.num_rows)
    bands_NB = np.zeros(used_NBR.shape[:2], dtype=np.uint64)
    for row in range(banding.num_rows):
        bands_NB = mixed(bands_NB + used_NBR[:, :, row].astype(np.uint64))
    return bands_NB


@dataclass(frozen=True)
class Contamination:
    """Contamination counts of a test set."""

    num_texts: int
    num_near_duplicates: int  # texts that are near-duplicates of a training text
    num_contained: int  # other texts, nearly all of whose shingles occur in one longer training text
    # Places of the near-duplicates among the test texts.
    place_of_near: tuple[int, ...] = field(default=(), compare=False)

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
    key_K: Hashes  # hashes of the looked-for shingles, sorted
    text_K: Numbers
    is_prefix_X: NDArray[np.bool_]  # whether any of `key_K` has this prefix
    is_near_N: NDArray[np.bool_]
    is_contained_N: NDArray[np.bool_]

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
        key_K = sets.hashes_S[chosen_K]
        is_prefix_X, is_near_N, is_contained_N = (
            np.zeros(size, dtype=bool) for size in (1 << _PREFIX_BITS, len(sets.counts_N), len(sets.counts_N))
        )
        is_prefix_X[_prefixes(key_K)] = True
        return cls(sets, key_K, text_S[chosen_K], is_prefix_X, is_near_N, is_contained_N)

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
