"""Reproducible training of a Unigram vocabulary (Kudo 2018, "Subword Regularization", section 3.2).

The trainer of `tokenizers` sums floats in the order in which its threads finish, and walks over hash maps with a seed
of each process: ties fall differently, and two runs give two vocabularies. This trainer works on arrays in a fixed
order.

Candidates are the pieces of a larger BPE vocabulary instead of all frequent substrings. Then two rounds of expectation
maximization alternate with a pruning of the pieces whose loss costs the least likelihood, until few enough are left.

Shapes: W distinct words, V candidate pieces, E edges: occurrences of a piece in a word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_CHARACTERS = 16
"""Longest piece, as in SentencePiece."""
_LONGEST_WORD = 32
"""Longest word used: longer ones are seldom words, and the probability of a path could underflow (see _LEAST)."""
_NUM_ROUNDS = 2
_KEPT_SHARE = 0.75
"""Share of the pieces that each pruning keeps, as in SentencePiece."""
_LEAST = 1e-9
"""Lower limit of a piece's probability: characters are kept even if no word needs them any more."""
_WORST = -1e6
"""Natural logarithm that stands for impossible, so that products with it stay finite."""
_SCORE_DIGITS = 6
"""Digits kept of the natural logarithms: an exponential may differ in its last bit between processors."""


@dataclass(frozen=True)
class Lattice:
    """All ways to cut all words. Edges are sorted by their end, so that a prefix is finished before it is used."""

    word_E: Ints
    start_E: Ints
    """Character of the word at which the piece begins."""
    piece_E: Ints
    bounds: Ints
    """Edges `bounds[j]` to `bounds[j + 1]` end before character j."""
    length_W: Ints

    @classmethod
    def build(cls, words: Sequence[str], ordinals: Mapping[str, int], *, whole: bool = True) -> Self:
        """Build the lattice of the pieces that fit in each word; without `whole`, the word itself does not count."""
        edges: list[int] = []
        for row, word in enumerate(words):
            for start in range(len(word)):
                for end in range(start + 1, min(start + MOST_CHARACTERS, len(word)) + 1):
                    piece = ordinals.get(word[start:end])
                    if piece is not None and (whole or end - start < len(word)):
                        edges += (row, start, end, piece)
        word_E, start_E, end_E, piece_E = np.array(edges, dtype=np.int64).reshape(-1, 4).T
        order_E = np.argsort(end_E, kind="stable")
        longest = max(map(len, words), default=0)
        return cls(
            word_E=word_E[order_E],
            start_E=start_E[order_E],
            piece_E=piece_E[order_E],
            bounds=np.searchsorted(end_E[order_E], np.arange(longest + 2)),
            length_W=np.array([len(word) for word in words], dtype=np.int64),
        )

    def expected_counts(self, probability_V: Floats, count_W: Ints) -> Floats:
        """Return the expected uses of each piece, over all ways to cut every word, weighted by their probability: [V].

        The forward-backward algorithm (Kudo 2018, section 3.2), one character of all words at a time.
        """
        num_words, longest = len(self.length_W), len(self.bounds) - 2
        forward, backward = np.zeros((longest + 1, num_words)), np.zeros((longest + 1, num_words))
        forward[0] = 1
        backward[self.length_W, np.arange(num_words)] = 1
        probability_E = probability_V[self.piece_E]
        for end in range(1, longest + 1):
            here = slice(self.bounds[end], self.bounds[end + 1])
            reach = forward[self.start_E[here], self.word_E[here]] * probability_E[here]
            forward[end] = np.bincount(self.word_E[here], weights=reach, minlength=num_words)
        expected_V = np.zeros(len(probability_V))
        total_W = forward[self.length_W, np.arange(num_words)]
        weight_W = np.divide(count_W, total_W, out=np.zeros(num_words), where=total_W > 0)
        for end in range(longest, 0, -1):
            here = slice(self.bounds[end], self.bounds[end + 1])
            word, start = self.word_E[here], self.start_E[here]
            onward = probability_E[here] * backward[end, word]
            np.add.at(backward, (start, word), onward)
            uses = forward[start, word] * onward * weight_W[word]
            expected_V += np.bincount(self.piece_E[here], weights=uses, minlength=len(expected_V))
        return expected_V

    def best_log_probability(self, log_probability_V: Floats) -> Floats:
        """Return the log probability of the likeliest way to cut each word (Viterbi 1967): [W]; -inf if none exists."""
        num_words, longest = len(self.length_W), len(self.bounds) - 2
        best = np.full((longest + 1, num_words), -np.inf)
        best[0] = 0
        for end in range(1, longest + 1):
            here = slice(self.bounds[end], self.bounds[end + 1])
            reach = best[self.start_E[here], self.word_E[here]] + log_probability_V[self.piece_E[here]]
            np.maximum.at(best[end], self.word_E[here], reach)
        return best[self.length_W, np.arange(num_words)]


def learn_scores(word_counts: Mapping[str, int], candidates: Sequence[str], num_pieces: int) -> dict[str, float]:
    """Return the `num_pieces` best of `candidates` with their natural log probabilities, likeliest first.

    Single characters among the candidates are always kept. If there are at most `num_pieces` candidates, all are
    returned.
    """
    words = sorted(word for word in word_counts if len(word) <= _LONGEST_WORD)
    count_W = np.array([word_counts[word] for word in words], dtype=np.int64)
    pieces = sorted(set(candidates))
    probability_V = np.full(len(pieces), 1 / len(pieces))
    while True:
        lattice = Lattice.build(words, {piece: ordinal for ordinal, piece in enumerate(pieces)})
        for _ in range(_NUM_ROUNDS):
            expected_V = lattice.expected_counts(probability_V, count_W)
            probability_V = np.maximum(expected_V / expected_V.sum(), _LEAST)
        if len(pieces) <= num_pieces:
            break
        kept = _kept(pieces, expected_V, probability_V, max(num_pieces, int(_KEPT_SHARE * len(pieces))))
        pieces, probability_V = [pieces[ordinal] for ordinal in kept], probability_V[kept]
    scores = np.round(np.log(probability_V), _SCORE_DIGITS).tolist()
    return dict(sorted(zip(pieces, scores, strict=True), key=lambda pair: (-pair[1], pair[0])))


def _kept(pieces: Sequence[str], expected_V: Floats, probability_V: Floats, num_kept: int) -> list[int]:
    """Return the ordinals of the pieces whose loss would cost most, ascending; ties are broken by the piece itself."""
    log_probability_V = np.log(probability_V)
    ordinals = {piece: ordinal for ordinal, piece in enumerate(pieces)}
    instead_V = Lattice.build(pieces, ordinals, whole=False).best_log_probability(log_probability_V)
    # A piece without a replacement costs much, unless it is never used.
    loss_V = np.round(expected_V * (log_probability_V - np.maximum(instead_V, _WORST)), _SCORE_DIGITS)
    is_character_V = np.array([len(piece) == 1 for piece in pieces])
    loss_V[is_character_V] = np.inf
    return sorted(np.argsort(-loss_V, kind="stable")[:num_kept].tolist())
