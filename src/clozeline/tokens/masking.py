"""Which tokens are hidden, as a pure function of who they are: (seed, epoch, document, position).

Nothing here knows of batches, workers, or ranks, so none of them can change a mask. Under `final_mask_rate` the rate
follows the share of the budget that is done: there `batch_tokens` and `steps` say how far down the same order it hides.

Shapes: N tokens, rows whole and in reading order where a unit is more than a token; V vocabulary.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Self

import numpy as np

from clozeline.errors import ParamsError
from clozeline.params import MaskingParams
from clozeline.tokens.draws import Flags, Ids, Stream, first_uniform, second_uniform, token_hashes
from clozeline.tokens.spelling import Spelling
from clozeline.tokens.units import UNITS, Tokens, Unit
from clozeline.words.numbers.mixing import mixed

__all__ = ["Ids", "Masked", "Masker", "Vocabulary", "evaluation_folds"]


@dataclass(frozen=True)
class Vocabulary:
    """What masking has to know of a tokenizer."""

    size: int
    mask_id: int
    special_ids: frozenset[int]
    """Never a target and never drawn as a replacement; [MASK] is one of them."""

    @property
    def is_special_V(self) -> Flags:
        """Indexed by token id."""
        return _flags(self.size, self.special_ids)

    @property
    def ordinary_ids(self) -> Ids:
        """Every id that is not special, ascending."""
        return np.flatnonzero(~self.is_special_V)


@dataclass(frozen=True)
class Masked:
    """Tokens after masking: what the model sees, and which of them it must name."""

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
    """Special or protected: never a target, never hidden, never drawn."""
    ordinary_ids: Ids
    """All others, ascending."""

    @classmethod
    def create(cls, params: MaskingParams, vocabulary: Vocabulary, seed: int, spelling: Spelling | None = None) -> Self:
        """A masker for one tokenizer; `spelling` may be left out where `needs_spelling` says so.

        Raises:
            ParamsError: `protected_tokens` names a token that there is not, or every token there is;
                or words are to be masked, and the tokenizer does not say where one begins.
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

    @staticmethod
    def needs_spelling(params: MaskingParams) -> bool:
        """Whether masks depend on how tokens are written, not on their ids alone."""
        return params.unit == "word" or bool(params.protected_tokens)

    def mask(self, epoch: int, input_ids_N: Ids, document_N: Ids, position_N: Ids, progress: float = 0.0) -> Masked:
        """Choose targets at the rate of the moment, and replace them by [MASK], by a random token, or not at all.

        Args:
            epoch: counted from 0; every epoch has masks of its own.
            input_ids_N: token ids.
            document_N: the document each token is from.
            position_N: its place in that document.
            progress: share of the training that is done, 0-1: where on the line from `mask_rate` to
                `final_mask_rate` the rate is. A higher rate hides all that a lower one hides, and more.
        """
        hash_N = token_hashes(self.seed, epoch, Stream.TARGET, document_N, position_N)
        tokens = Tokens(self.seed, epoch, input_ids_N, document_N, position_N, self.is_special_V, hash_N)
        chosen_N = self.unit.numbers(tokens) < self.unit.threshold(self.rate_at(progress))
        is_target_N = chosen_N & ~self.is_fixed_V[input_ids_N]
        # A token's own bits say what becomes of it: 24 of them for its fate, all 64, mixed once more, for "which
        # token instead". The unit used none of these.
        fate_N = second_uniform(hash_N)
        output_ids_N = input_ids_N.copy()
        output_ids_N[is_target_N & (fate_N < self.params.mask_share)] = self.mask_id
        is_random_N = is_target_N & (fate_N >= self.params.mask_share)
        is_random_N &= fate_N < self.params.mask_share + self.params.random_share
        draws = mixed(hash_N[is_random_N]) % np.uint64(max(len(self.ordinary_ids), 1))
        output_ids_N[is_random_N] = self.ordinary_ids[draws.astype(np.int64)]
        if self.params.word_dropout > 0:
            output_ids_N[self._dropped(tokens) & ~is_target_N] = self.mask_id
        return Masked(output_ids_N, is_target_N)

    def rate_at(self, progress: float) -> float:
        """Share of the maskable tokens that are targets (Ankner et al. 2023: from high to low)."""
        assert 0 <= progress <= 1, progress
        final = self.params.mask_rate if self.params.final_mask_rate is None else self.params.final_mask_rate
        return self.params.mask_rate + progress * (final - self.params.mask_rate)

    def _dropped(self, tokens: Tokens) -> Flags:
        """Tokens to hide without asking for them.

        As [MASK], not [UNK]: every masked language model has a trained [MASK] that says "something is hidden here",
        whereas many tokenizers have no [UNK], and in the others it would learn to mean any word, not a strange one.
        """
        hash_N = token_hashes(self.seed, tokens.epoch, Stream.DROPOUT, tokens.document_N, tokens.position_N)
        return (first_uniform(hash_N) < self.params.word_dropout) & ~self.is_fixed_V[tokens.input_ids_N]


def evaluation_folds(seed: int, num_folds: int, document_N: Ids, position_N: Ids) -> Ids:
    """Fold of each token, 0 … num_folds-1: a target in that pass and in no other, so once in all."""
    hash_N = token_hashes(seed, 0, Stream.FOLD, document_N, position_N)
    return (hash_N % np.uint64(num_folds)).astype(np.int64)


def _protected_ids(params: MaskingParams, spelling: Spelling | None) -> list[int]:
    if not params.protected_tokens:
        return []
    assert spelling is not None, "`protected_tokens` have to be found in the tokenizer's spelling"
    for token in params.protected_tokens:
        if token not in spelling.ids:
            near = get_close_matches(token, spelling.ids, n=1)
            raise ParamsError(
                f"`masking.protected_tokens` names `{token}`, which the tokenizer does not have",
                given=", ".join(params.protected_tokens),
                expected="tokens as the vocabulary in tokenizer.json spells them",
                do=f"write `{near[0]}`, or take it out" if near else "take it out of the list",
            )
    return [spelling.ids[token] for token in params.protected_tokens]


def _flags(size: int, ids: Iterable[int]) -> Flags:
    flags_V = np.zeros(size, dtype=bool)
    flags_V[list(ids)] = True
    return flags_V
