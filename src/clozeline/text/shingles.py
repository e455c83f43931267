"""A text as a set of word shingles, its MinHash signature, and the bands that near-duplicates share.

Names end in their shape: N texts, W words of all texts, S shingles of all texts, P permutations, B bands.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from rensa import RMinHash

NUM_PERMUTATIONS = 128
_SHINGLE_WORDS = 3
"""Short texts need short shingles: one changed word spoils three of them, of five-word ones five."""
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|\w+")
"""Chinese and Japanese put no spaces between words; there a character stands for a word."""
_ASCII_WORDS = {code: chr(code).lower() if chr(code).isalnum() or chr(code) == "_" else " " for code in range(128)}
"""To translate by: what remains between spaces are the words of ASCII text, found in half the time."""
_MIN_RECALL = 0.97
_MAX_CACHED_WORDS = 15_000
_SIGNATURE_SEED = 1
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], dtype=np.uint64)


@dataclass(frozen=True)
class ShingleSets:
    """The sets of many texts: `hashes_S` sorted and unique within each text, and `counts_N` of them."""

    hashes_S: NDArray[np.uint32]
    counts_N: NDArray[np.int64]
    bands_NB: NDArray[np.uint64]


@dataclass(frozen=True)
class PlainSets:
    """The sets of many texts, without their bands."""

    hashes_S: NDArray[np.uint32]
    """Sorted and unique within each text."""
    counts_N: NDArray[np.int64]

    @property
    def starts_N(self) -> NDArray[np.int64]:
        starts_N: NDArray[np.int64] = np.cumsum(self.counts_N) - self.counts_N
        return starts_N

    def hashes_of(self, texts_P: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The sets of some texts, back to back."""
        counts_P = self.counts_N[texts_P]
        before_P = np.cumsum(counts_P) - counts_P
        return self.hashes_S[np.repeat(self.starts_N[texts_P] - before_P, counts_P) + np.arange(int(counts_P.sum()))]


@dataclass(frozen=True)
class Banding:
    """Locality-sensitive hashing: texts that agree on all `num_rows` of any of `num_bands` are candidates."""

    num_bands: int
    num_rows: int

    @classmethod
    def finding(cls, similarity: float) -> "Banding":
        """The most selective banding that finds at least 97 % of the pairs of this Jaccard similarity.

        A pair of similarity s is found with probability 1 - (1 - s^r)^b
        (Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, section 3.4.2).
        """
        for num_rows in range(NUM_PERMUTATIONS, 1, -1):
            num_bands = NUM_PERMUTATIONS // num_rows
            if 1 - (1 - similarity**num_rows) ** num_bands >= _MIN_RECALL:
                return cls(num_bands, num_rows)
        return cls(NUM_PERMUTATIONS, 1)


class _WordHashes(dict[str, int]):
    """Hashes of the words met so far: text repeats its words."""

    def __missing__(self, word: str) -> int:
        value = int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
        self[word] = value
        return value


_WORD_HASHES = _WordHashes()


def shingle_sets(texts: list[str], banding: Banding) -> ShingleSets:
    """Shingle, sketch and band a batch of texts; the result of a text does not depend on its batch."""
    shingles_S, num_shingles_N = _hashed_shingles(texts)
    hashes_S, counts_N = _unique_within_text(shingles_S, num_shingles_N)
    return ShingleSets(hashes_S, counts_N, _bands(shingles_S, num_shingles_N, banding))


def plain_sets(texts: list[str]) -> PlainSets:
    """Shingle a batch of texts: the sets of `shingle_sets` without their signatures, which take most of its time."""
    return PlainSets(*_unique_within_text(*_hashed_shingles(texts)))


def _hashed_shingles(texts: list[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The shingles of all texts in reading order, and how many each has."""
    words_N = [_words(text) for text in texts]
    num_words_N = np.array([len(words) for words in words_N], dtype=np.int64)
    if len(_WORD_HASHES) > _MAX_CACHED_WORDS:
        _WORD_HASHES.clear()
    hashes = map(_WORD_HASHES.__getitem__, chain.from_iterable(words_N))
    words_W = np.fromiter(hashes, dtype=np.uint64, count=int(num_words_N.sum()))
    return _shingles(words_W, num_words_N)


def _words(text: str) -> list[str]:
    words = text.translate(_ASCII_WORDS).split() if text.isascii() else _WORD.findall(text.casefold())
    words = words or [text]
    return words + [""] * (_SHINGLE_WORDS - len(words))


def _shingles(
    words_W: NDArray[np.uint64], num_words_N: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    starts_W = np.ones(len(words_W), dtype=bool)
    ends_N = np.cumsum(num_words_N)
    for distance in range(1, _SHINGLE_WORDS):
        starts_W[ends_N - distance] = False
    shingles_W = np.zeros(len(words_W), dtype=np.uint64)
    for place, factor in enumerate(_FACTORS):
        shingles_W[: len(words_W) - place] += words_W[place:] * factor
    return _mixed(shingles_W[starts_W]), num_words_N - (_SHINGLE_WORDS - 1)


def _unique_within_text(
    shingles_S: NDArray[np.uint64], num_shingles_N: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    num_texts = len(num_shingles_N)
    text_S = np.repeat(np.arange(num_texts, dtype=np.uint64), num_shingles_N)
    keys_S = np.sort((text_S << np.uint64(32)) | (shingles_S >> np.uint64(32)))
    keys_S = keys_S[np.append(True, keys_S[1:] != keys_S[:-1])]
    counts_N = np.bincount((keys_S >> np.uint64(32)).astype(np.int64), minlength=num_texts)
    return keys_S.astype(np.uint32), counts_N


def _bands(shingles_S: NDArray[np.uint64], num_shingles_N: NDArray[np.int64], banding: Banding) -> NDArray[np.uint64]:
    offsets = np.concatenate([[0], np.cumsum(num_shingles_N)]).astype(np.uint64)
    digests = RMinHash.digest_matrix_from_flat_token_hashes(shingles_S, offsets, NUM_PERMUTATIONS, _SIGNATURE_SEED)
    signature_NP = np.array(digests.to_rows(), dtype=np.uint64).reshape(len(num_shingles_N), NUM_PERMUTATIONS)
    used_NBR = signature_NP[:, : banding.num_bands * banding.num_rows].reshape(-1, banding.num_bands, banding.num_rows)
    bands_NB = np.zeros(used_NBR.shape[:2], dtype=np.uint64)
    for row in range(banding.num_rows):
        bands_NB = _mixed(bands_NB + used_NBR[:, :, row])
    return bands_NB


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014): every bit of the input reaches every bit of the output."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
