"""Masking units: a token, a whole word, or a span is hidden as one.

A unit gives each token a number; the token is a target if its number is below the unit's threshold for the rate. The
numbers do not depend on the rate, so everything hidden at a low rate is hidden at a higher one too.

Shapes: N tokens; K possible starts of a span that covers a token.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Protocol

import numpy as np

from clozeline.errors import ParamsError
from clozeline.params import MaskingParams
from clozeline.tokens.draws import (
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
from clozeline.tokens.spelling import Spelling

MOST_SPAN_TOKENS = 10
_NEW_SEGMENT = 2**40
"""Farther than any position, so that positions restart after a special token."""


@dataclass(frozen=True)
class Tokens:
    """Candidates for targets: tokens of whole rows in reading order."""

    seed: int
    epoch: int
    input_ids_N: Ids
    document_N: Ids
    position_N: Ids
    row_N: Ids
    """Row of each token: the next row of the same document may be in another batch."""
    is_special_V: Flags
    hash_N: Hashes
    """Bits of each token in stream TARGET."""


class Unit(Protocol):
    def numbers(self, tokens: Tokens) -> Uniforms:
        """Return a number in [0, 1] for each token, the same in any epoch order, batch or process."""
        ...

    def threshold(self, rate: float) -> float:
        """Return the threshold that a share `rate` of the tokens falls below."""
        ...


class TokenUnit:
    """Single tokens (Devlin et al. 2018, section 3.1)."""

    def numbers(self, tokens: Tokens) -> Uniforms:
        return first_uniform(tokens.hash_N)

    def threshold(self, rate: float) -> float:
        return rate


@dataclass(frozen=True)
class WordUnit:
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

    def threshold(self, rate: float) -> float:
        return rate


@dataclass(frozen=True)
class SpanUnit:
    """Spans of geometric length, at most 10 tokens (Joshi et al. 2020, section 3.1), without their quota per row.

    A span may begin at any position, also before the first of the document, so every position is covered with the same
    probability. The number of a token is the lowest of all spans that would cover it. Spans may overlap, and end at a
    special token.
    """

    reaches_K: tuple[float, ...]
    """Probability that a span is longer than 0, 1, … 9 tokens."""

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
    ratio = _root(lambda ratio: _mean(_shares(ratio)) - mean_tokens)
    shares = _shares(ratio)
    return SpanUnit(tuple(sum(shares[length:]) for length in range(MOST_SPAN_TOKENS)))


def _shares(ratio: float) -> list[float]:
    """Return the shares of the lengths 1 to 10, each `ratio` times the one before."""
    weights = [ratio**length for length in range(MOST_SPAN_TOKENS)]
    return [weight / sum(weights) for weight in weights]


def _mean(shares: list[float]) -> float:
    return sum(length * share for length, share in enumerate(shares, start=1))


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


def _span_unit(params: MaskingParams, spelling: Spelling | None) -> Unit:
    assert params.mean_span_tokens is not None
    return span_unit(params.mean_span_tokens)


def _token_unit(params: MaskingParams, spelling: Spelling | None) -> Unit:
    return TokenUnit()


UNITS: Mapping[str, Callable[[MaskingParams, Spelling | None], Unit]] = MappingProxyType(
    {"token": _token_unit, "word": _word_unit, "span": _span_unit}
)
"""Constructor of the unit for each value of `masking.unit`."""
