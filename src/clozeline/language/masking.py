"""Masking of tokens as a pure function of their identity: (seed, epoch, document, position).

The module knows nothing of batches, workers, or ranks, so none of them can change a mask. With `final_mask_rate` the
rate follows the share of the budget that is done, so `batch_tokens` and `steps` decide how many tokens of one fixed
order are hidden.

A masking unit is a token, a whole word, or a span, which is hidden as one. A unit gives each token a number; the token
is a target if its number is below the unit's threshold for the rate. The numbers do not depend on the rate, so
everything hidden at a low rate is hidden at a higher one too.

Shapes: N tokens, rows whole and in reading order where a masking unit is more than a token; V vocabulary; K possible
starts of a span that covers a token.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from operator import mul
from typing import Self, cast

import numpy as np

from clozeline.language.draws import (
    Flags,
    Hashes,
    Ids,
    Stream,
    Uniforms,
    first_uniform,
    follows,
    second_uniform,
    token_hashes,
)
from clozeline.language.spelling import Spelling
from clozeline.params.pretraining import MaskingParams
from clozeline.records.words.numbers import mixed
from clozeline.system.errors import ParamsError

MOST_SPAN_TOKENS = 10
# Farther than any position, so that positions restart after a special token.
_NEW_SEGMENT = 2**40

_MEAN_STEPS = 1000


@dataclass(frozen=True)
class Tokens:
    """Candidates for targets: tokens of whole rows in reading order."""

    seed: int
    epoch: int
    input_ids_N: Ids
    document_N: Ids
    position_N: Ids
    row_N: Ids  # row of each token: the next row of the same document may be in another batch
    is_special_V: Flags
    hash_N: Hashes  # bits of each token in stream TARGET


class Unit(ABC):
    @abstractmethod
    def numbers(self, tokens: Tokens) -> Uniforms:
        """Return a number in [0, 1] for each token, the same in any epoch order, batch or process."""

    def threshold(self, rate: float) -> float:
        """Return the threshold that a share `rate` of the tokens falls below."""
        return rate


class TokenUnit(Unit):
    """Single tokens (Devlin et al. 2018, section 3.1)."""

    def numbers(self, tokens: Tokens) -> Uniforms:
        return first_uniform(tokens.hash_N)


@dataclass(frozen=True)
class WordUnit(Unit):
    """Whole words (BERT's release of May 2019): the number of a word is that of its first token in the row.

    Words are chosen with equal probability, whatever their length, so the expected share of tokens is the rate too.
    """

    spelling: Spelling

    def numbers(self, tokens: Tokens) -> Uniforms:
        follows_N = follows(tokens.row_N, tokens.position_N)
        continues_N = self.spelling.continues_word(tokens.input_ids_N, follows_N)
        index_N = np.arange(len(continues_N))
        first_N = np.maximum.accumulate(np.where(continues_N, 0, index_N))
        return first_uniform(tokens.hash_N)[first_N]


@dataclass(frozen=True)
class SpanUnit(Unit):
    """Spans of geometric length, at most 10 tokens (Joshi et al. 2020, section 3.1), without their quota per row.

    A span may begin at any position, also before the first of the document, so every position is covered with the same
    probability. The number of a token is the lowest of all spans that would cover it. Spans may overlap, and end at a
    special token.
    """

    reaches_K: tuple[float, ...]  # probability that a span is longer than 0, 1, … 9 tokens

    def numbers(self, tokens: Tokens) -> Uniforms:
        start_KN = _places(tokens) - np.arange(MOST_SPAN_TOKENS)[:, None]
        hash_KN = token_hashes(tokens.seed, tokens.epoch, Stream.SPAN, tokens.document_N, start_KN)
        covers_KN = second_uniform(hash_KN) < np.array(self.reaches_K)[:, None]
        lowest_N: Uniforms = np.where(covers_KN, first_uniform(hash_KN), 1.0).min(axis=0)
        return lowest_N

    def threshold(self, rate: float) -> float:
        """Return the probability of a start p with 1 - rate = ∏ₖ (1 - p · P(length > k)): no span covers the token."""
        return _root(lambda start: 1 - prod(1 - start * reach for reach in self.reaches_K) - rate)


def _places(tokens: Tokens) -> Ids:
    """Return positions that jump at each special token of a row."""
    is_special_N = tokens.is_special_V[tokens.input_ids_N]
    if not is_special_N.any():
        return tokens.position_N
    follows_N = follows(tokens.row_N, tokens.position_N)
    first_N = np.maximum.accumulate(np.where(follows_N, 0, np.arange(len(follows_N))))
    num_special_N = np.cumsum(is_special_N)
    return tokens.position_N + _NEW_SEGMENT * (num_special_N - num_special_N[first_N])


def span_unit(mean_tokens: float) -> SpanUnit:
    """Return spans with mean length `mean_tokens` after the cut at 10 (SpanBERT: 3.8, a geometric with p = 0.2)."""
    lengths = range(1, MOST_SPAN_TOKENS + 1)
    shares = _shares(_root(lambda ratio: sum(map(mul, lengths, _shares(ratio))) - mean_tokens))
    return SpanUnit(tuple(sum(shares[length:]) for length in range(MOST_SPAN_TOKENS)))


def _shares(ratio: float) -> list[float]:
    """Return the shares of the lengths 1 to 10, each `ratio` times the one before."""
    weights = [ratio**length for length in range(MOST_SPAN_TOKENS)]
    return [weight / sum(weights) for weight in weights]


def _root(rising: Callable[[float], float]) -> float:
    """Return the zero of `rising` in [0, 1], to the last bit."""
    low, high = 0.0, 1.0
    for _ in range(54):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high


def _word_unit(params: MaskingParams, spelling: Spelling | None) -> Unit:
    assert spelling is not None, "unit `word` needs the tokenizer's spelling"
    if not spelling.marks_words:
        raise ParamsError(
            "`masking.unit: word`: no token marks where a word begins (##, byte-level BPE, SentencePiece ▁, </w>)",
            do="set `masking.unit: token` or `span`, or take another tokenizer",
        )
    return WordUnit(spelling)


# Constructor of the unit for each value of `masking.unit`.
UNITS: Mapping[str, Callable[[MaskingParams, Spelling | None], Unit]] = {
    "token": lambda params, spelling: TokenUnit(),
    "word": _word_unit,
    "span": lambda params, spelling: span_unit(cast(float, params.mean_span_tokens)),
}


@dataclass(frozen=True)
class Vocabulary:
    """Properties of a tokenizer that masking needs."""

    size: int
    mask_id: int
    special_ids: frozenset[int]  # ids that are never targets and never drawn as replacements; [MASK] is one of them

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
    is_fixed_V: Flags  # special or protected tokens: never targets, never hidden, never drawn
    ordinary_ids: Ids  # all other ids, ascending

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
