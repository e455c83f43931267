"""Masking of tokens as a pure function of their identity: (seed, epoch, document, position).

The module knows nothing of batches, workers, or ranks, so none of them can change a mask. With `final_mask_rate` the
rate follows the share of the budget that is done, so `batch_tokens` and `steps` decide how many tokens of one fixed
order are hidden.

Shapes: N tokens, rows whole and in reading order where a masking unit is more than a token; V vocabulary.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Self

import numpy as np

from clozeline.errors import ParamsError
from clozeline.params import MaskingParams
from clozeline.tokens.draws import Flags, Ids, Stream, second_uniform, token_hashes
from clozeline.tokens.spelling import Spelling
from clozeline.tokens.units import UNITS, Tokens, Unit
from clozeline.words.numbers.mixing import mixed

__all__ = ["Ids", "Masked", "Masker", "Vocabulary", "evaluation_folds", "mean_rate"]

_MEAN_STEPS = 1000


@dataclass(frozen=True)
class Vocabulary:
    """Properties of a tokenizer that masking needs."""

    size: int
    mask_id: int
    special_ids: frozenset[int]
    """Ids that are never targets and never drawn as replacements; [MASK] is one of them."""

    @property
    def is_special_V(self) -> Flags:
        """Flags indexed by token id."""
        return _flags(self.size, self.special_ids)

    @property
    def ordinary_ids(self) -> Ids:
        """All ids that are not special, ascending."""
        return np.flatnonzero(~self.is_special_V)


@dataclass(frozen=True)
class Masked:
    """Tokens after masking: the input of the model, and which tokens are targets."""

    input_ids_N: Ids
    is_target_N: Flags


@dataclass(frozen=True)
class Masker:
    """Dynamic masking (Devlin et al. 2018, section 3.1; Liu et al. 2019, section 4.1: new masks each epoch)."""

    seed: int
    params: MaskingParams
    unit: Unit
    mask_id: int
    is_special_V: Flags
    is_fixed_V: Flags
    """Special or protected tokens: never targets, never hidden, never drawn."""
    ordinary_ids: Ids
    """All other ids, ascending."""

    @classmethod
    def create(cls, params: MaskingParams, vocabulary: Vocabulary, seed: int, spelling: Spelling | None = None) -> Self:
        """A masker for one tokenizer; `spelling` may be left out where neither words nor `protected_tokens` need it.

        Raises:
            ParamsError: `protected_tokens` names an unknown token; or the masking unit is `word`, and the
                tokenizer does not mark where words begin.
        """
        is_fixed_V = vocabulary.is_special_V | _flags(vocabulary.size, _protected_ids(params, spelling))
        return cls(
            seed=seed,
            params=params,
            unit=UNITS[params.unit](params, spelling),
            mask_id=vocabulary.mask_id,
            is_special_V=vocabulary.is_special_V,
            is_fixed_V=is_fixed_V,
            ordinary_ids=np.flatnonzero(~is_fixed_V),
        )

    def mask(
        self,
        epoch: int,
        input_ids_N: Ids,
        document_N: Ids,
        position_N: Ids,
        progress: float = 0.0,
        row_N: Ids | None = None,
    ) -> Masked:
        """Choose targets at the current rate; replace each by [MASK], by a random token, or not at all.

        Args:
            epoch: counted from 0; every epoch has masks of its own.
            input_ids_N: token ids.
            document_N: document of each token.
            position_N: position of each token in its document.
            progress: share of the training that is done, 0-1: the point between `mask_rate` and `final_mask_rate`. A
                higher rate hides everything that a lower one hides, and more.
            row_N: row of each token, at whose edges words and spans end; None: each document is one row.
        """
        hash_N = token_hashes(self.seed, epoch, Stream.TARGET, document_N, position_N)
        rows = document_N if row_N is None else row_N
        tokens = Tokens(self.seed, epoch, input_ids_N, document_N, position_N, rows, self.is_special_V, hash_N)
        chosen_N = self.unit.numbers(tokens) < self.unit.threshold(rate_at(self.params, progress))
        is_target_N = chosen_N & ~self.is_fixed_V[input_ids_N]
        # The bits of a target decide its replacement: 24 of them choose the kind, and all 64, mixed once more, choose
        # the random token. The unit used none of these 24.
        fate_N = second_uniform(hash_N)
        output_ids_N = input_ids_N.copy()
        output_ids_N[is_target_N & (fate_N < self.params.mask_share)] = self.mask_id
        is_random_N = is_target_N & (fate_N >= self.params.mask_share)
        is_random_N &= fate_N < self.params.mask_share + self.params.random_share
        draws = mixed(hash_N[is_random_N]) % np.uint64(max(len(self.ordinary_ids), 1))
        output_ids_N[is_random_N] = self.ordinary_ids[draws.astype(np.int64)]
        return Masked(output_ids_N, is_target_N)


def rate_at(params: MaskingParams, progress: float) -> float:
    """Return the share of maskable tokens that are targets (Ankner et al. 2023: from high to low).

    Args:
        params: masking section of the params.
        progress: share of the training that is done, 0-1.
    """
    assert 0 <= progress <= 1, progress
    final = params.mask_rate if params.final_mask_rate is None else params.final_mask_rate
    return params.mask_rate + progress * (final - params.mask_rate)


def mean_rate(params: MaskingParams) -> float:
    """Return the mean of `rate_at` over the training, by the midpoint rule."""
    return float(np.mean([rate_at(params, (step + 0.5) / _MEAN_STEPS) for step in range(_MEAN_STEPS)]))


def evaluation_folds(seed: int, num_folds: int, document_N: Ids, position_N: Ids) -> Ids:
    """Return the fold of each token, 0 … num_folds-1: the one evaluation pass in which it is a target."""
    hash_N = token_hashes(seed, 0, Stream.FOLD, document_N, position_N)
    return (hash_N % np.uint64(num_folds)).astype(np.int64)


def _protected_ids(params: MaskingParams, spelling: Spelling | None) -> list[int]:
    if not params.protected_tokens:
        return []
    assert spelling is not None, "`protected_tokens` need the tokenizer's spelling"
    for token in params.protected_tokens:
        if token not in spelling.ids:
            near = get_close_matches(token, spelling.ids, n=1)
            raise ParamsError(
                f"`masking.protected_tokens` names `{token}`, which is not in the vocabulary in tokenizer.json",
                do=f"write `{near[0]}`, or remove it" if near else "remove it from the list",
            )
    return [spelling.ids[token] for token in params.protected_tokens]


def _flags(size: int, ids: Iterable[int]) -> Flags:
    flags_V = np.zeros(size, dtype=bool)
    flags_V[list(ids)] = True
    return flags_V
