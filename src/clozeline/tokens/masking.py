"""Which tokens are hidden, as a pure function of who they are: (seed, epoch, document, position).

Nothing here knows of batches, workers, or ranks, so none of them can change a mask.

Shapes: N tokens, in any order and from any documents; V vocabulary.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.params import MaskingParams

Ids = NDArray[np.int64]
Hashes = NDArray[np.uint64]

_UNIT = 2.0**-24


class Stream(IntEnum):
    """Independent draws for the same token."""

    TARGET = 1
    FOLD = 2


@dataclass(frozen=True)
class Vocabulary:
    """What masking has to know of a tokenizer."""

    size: int
    mask_id: int
    special_ids: frozenset[int]
    """Never a target and never drawn as a replacement; [MASK] is one of them."""

    @property
    def is_special_V(self) -> NDArray[np.bool_]:
        """Indexed by token id."""
        flags_V = np.zeros(self.size, dtype=bool)
        flags_V[list(self.special_ids)] = True
        return flags_V

    @property
    def ordinary_ids(self) -> Ids:
        """Every id that is not special, ascending."""
        return np.flatnonzero(~self.is_special_V)


@dataclass(frozen=True)
class Masked:
    """Tokens after masking: what the model sees, and which of them it must name."""

    input_ids_N: Ids
    is_target_N: NDArray[np.bool_]


@dataclass(frozen=True)
class Masker:
    """Dynamic masking (Devlin et al. 2018, section 3.1; Liu et al. 2019, section 4.1: new masks each epoch)."""

    seed: int
    params: MaskingParams
    mask_id: int
    is_special_V: NDArray[np.bool_]
    ordinary_ids: Ids

    @classmethod
    def create(cls, params: MaskingParams, vocabulary: Vocabulary, seed: int) -> Self:
        return cls(seed, params, vocabulary.mask_id, vocabulary.is_special_V, vocabulary.ordinary_ids)

    def mask(self, epoch: int, input_ids_N: Ids, document_N: Ids, position_N: Ids) -> Masked:
        """Choose targets at `mask_rate`, and replace them by [MASK], by a random token, or not at all.

        Args:
            epoch: counted from 0; every epoch has masks of its own.
            input_ids_N: token ids.
            document_N: the document each token is from.
            position_N: its place in that document.
        """
        hash_N = token_hashes(self.seed, epoch, Stream.TARGET, document_N, position_N)
        # Three draws from disjoint bits: 24 for "is it a target", 24 for "what becomes of it", all 64, mixed
        # once more, for "which token instead".
        chosen_N = _low_bits(hash_N) < self.params.mask_rate
        is_target_N = chosen_N & ~self.is_special_V[input_ids_N]
        fate_N = _low_bits(hash_N >> np.uint64(24))
        output_ids_N = input_ids_N.copy()
        output_ids_N[is_target_N & (fate_N < self.params.mask_share)] = self.mask_id
        is_random_N = is_target_N & (fate_N >= self.params.mask_share)
        is_random_N &= fate_N < self.params.mask_share + self.params.random_share
        draws = _mix(hash_N[is_random_N]) % np.uint64(len(self.ordinary_ids))
        output_ids_N[is_random_N] = self.ordinary_ids[draws.astype(np.int64)]
        return Masked(output_ids_N, is_target_N)


def evaluation_folds(seed: int, num_folds: int, document_N: Ids, position_N: Ids) -> Ids:
    """Fold of each token, 0 … num_folds-1: a target in that pass and in no other, so once in all."""
    hash_N = token_hashes(seed, 0, Stream.FOLD, document_N, position_N)
    return (hash_N % np.uint64(num_folds)).astype(np.int64)


def token_hashes(seed: int, epoch: int, stream: Stream, document_N: Ids, position_N: Ids) -> Hashes:
    """64 well-mixed bits for each token: SplitMix64 (Steele et al. 2014, "Fast splittable generators", fig. 13)."""
    key = _key([seed, epoch, stream])
    return _mix(_mix(document_N.astype(np.uint64) + key) + position_N.astype(np.uint64))


def _key(parts: Iterable[int]) -> np.uint64:
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = _mix(key + np.uint64(part))
    return np.uint64(key[0])


def _mix(bits: Hashes) -> Hashes:
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _low_bits(hash_N: Hashes) -> NDArray[np.float64]:
    """Uniform in [0, 1) from the lowest 24 bits."""
    return (hash_N & np.uint64(0xFFFFFF)).astype(np.float64) * _UNIT
