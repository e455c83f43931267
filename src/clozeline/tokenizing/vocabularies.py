"""Training of a vocabulary from text: a table of algorithms, and our own trainer of Unigram.

The same text gives the same vocabulary for any number of threads. `tokenizers` alone does not promise that, because it
walks over hash maps that are seeded differently in each process. Where that walk decides something, this module decides
it beforehand (which characters are kept, which ids they get) or restores a fixed order afterwards.

For Unigram (Kudo 2018, "Subword Regularization", section 3.2) that is not enough: the trainer of `tokenizers` also sums
floats in the order in which its threads finish. Ours works on arrays in a fixed order. Candidates are the pieces of a
larger BPE vocabulary instead of all frequent substrings. Then two rounds of expectation maximization alternate with a
pruning of the pieces whose loss costs the least likelihood, until few enough are left.

Shapes: W distinct words, V candidate pieces, E edges: occurrences of a piece in a word.
"""

import logging
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from clozeline.cluster.ledger import Ledger, passing_ledger
from clozeline.params.text import TokenizeParams
from clozeline.records.word_cuts import BLANKS
from clozeline.system.errors import DataError
from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS, frame_with_special_tokens, special_token
from clozeline.tokenizing.words import CountedText, CountedTexts, FrequentWords, TrainingText

_LOG = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Longest piece, as in SentencePiece.
MOST_CHARACTERS = 16
# Longest word used: longer ones are seldom words, and the probability of a path could underflow (see _LEAST).
_LONGEST_WORD = 32
_NUM_ROUNDS = 2
# Share of the pieces that each pruning keeps, as in SentencePiece.
_KEPT_SHARE = 0.75
# Lower limit of a piece's probability: characters are kept even if no word needs them any more.
_LEAST = 1e-9
# Natural logarithm that stands for impossible, so that products with it stay finite.
_WORST = -1e6
# Digits kept of the natural logarithms: an exponential may differ in its last bit between processors.
_SCORE_DIGITS = 6

_SPECIAL = list(SPECIAL_TOKENS.values())
_UNKNOWN = SPECIAL_TOKENS["unk_token"]
_PREFIX = "##"
_METASPACE = "▁"
# Candidate pieces of Unigram for each piece that it keeps.
_CANDIDATES_PER_PIECE = 4

# Share of the text's characters that the alphabet must cover; rarer characters become [UNK].
#
# SentencePiece keeps 0.9995 (Kudo & Richardson 2018), but WordPiece loses a whole word for one unknown character.
_CHARACTER_COVERAGE = 0.9999
# Largest share of the alphabet in the vocabulary. WordPiece holds a character twice, as `a` and `##a`.
_MOST_ALPHABET_SHARE = 0.25


@dataclass(frozen=True)
class Lattice:
    """All ways to cut all words. Edges are sorted by their end, so that a prefix is finished before it is used."""

    word_E: Ints
    start_E: Ints  # character of the word at which the piece begins
    piece_E: Ints
    bounds: Ints  # edges `bounds[j]` to `bounds[j + 1]` end before character j
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


@dataclass(frozen=True)
class Algorithm:
    """How text is cut before a vocabulary is learned, and how the vocabulary is learned."""

    untrained: Callable[[TokenizeParams], Tokenizer]
    train: Callable[[Tokenizer, TokenizeParams, TrainingText], Tokenizer]


def learn(params: TokenizeParams, partitions: Sequence[CountedTexts], ledger: Ledger | None = None) -> Tokenizer:
    """Learn a vocabulary of `params.vocab_size` entries, or of as many as a short text supports.

    Neither the number of partitions nor the workers of the ledger change the vocabulary.

    Args:
        params: section `tokenize` of params.yaml.
        partitions: the training text.
        ledger: counts partitions, and records their counts; by default this process counts.

    Raises:
        DataError: the text is empty.
    """
    algorithm = ALGORITHMS[params.algorithm]
    with nullcontext(ledger) if ledger else passing_ledger() as ledger:
        tokenizer = algorithm.train(algorithm.untrained(params), params, TrainingText(partitions, ledger))
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size < params.vocab_size:
        if not any(one.strip() for partition in partitions for batch in partition.texts() for one in batch):
            raise _no_text()
        _LOG.info(
            "the vocabulary has %s entries, not %s: so many pieces occur %s times or more in the training text",
            *(f"{number:,}" for number in (size, params.vocab_size, params.min_frequency)),
        )
    frame_with_special_tokens(tokenizer, SPECIAL_TOKENS["cls_token"], SPECIAL_TOKENS["sep_token"])
    return tokenizer


def _untrained_wordpiece(params: TokenizeParams) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token=_UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=params.lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=_PREFIX)
    return tokenizer


def _train_wordpiece(tokenizer: Tokenizer, params: TokenizeParams, text: TrainingText) -> Tokenizer:
    """Train as BERT's tokenizer is trained, with fixed ids of `##a`, `##b` ….

    The trainer numbers them in the order of a hash map, and breaks ties between merges by these numbers. As special
    tokens they have their ids before training starts; the final model gets the vocabulary without that role.
    """
    counted = text.counted(tokenizer)
    alphabet = _alphabet(tokenizer, params.vocab_size, counted)
    inside = [_PREFIX + character for character in alphabet if not _is_own_word(character)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=params.vocab_size,
        min_frequency=params.min_frequency,
        special_tokens=_SPECIAL + inside,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=_PREFIX,
        show_progress=False,
    )
    _train_on_words(tokenizer, _word_counts(tokenizer, counted.words), trainer)
    learned = _untrained_wordpiece(params)
    learned.model = models.WordPiece(
        tokenizer.get_vocab(with_added_tokens=False), unk_token=_UNKNOWN, continuing_subword_prefix=_PREFIX
    )
    learned.add_special_tokens(_SPECIAL)
    return learned


def _untrained_bpe(params: TokenizeParams) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=_UNKNOWN))
    tokenizer.normalizer = _normalizer(normalizers.NFC(), params)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _train_bpe(tokenizer: Tokenizer, params: TokenizeParams, text: TrainingText) -> Tokenizer:
    """Train byte-level BPE. Its ties depend only on 256 characters, which the trainer itself sorts.

    The trainer counts every word in this process, with a thread for each core: its words are half a million in 50 MB,
    and to cut each of them again takes as long as to count them here.
    """
    trainer = trainers.BpeTrainer(
        vocab_size=params.vocab_size,
        min_frequency=params.min_frequency,
        special_tokens=[special_token(token, takes_space=True) for token in _SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.batches(), trainer)
    return tokenizer


def _untrained_unigram(params: TokenizeParams) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [_normalizer(normalizers.NFKC(), params), normalizers.Replace(Regex(BLANKS), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _train_unigram(tokenizer: Tokenizer, params: TokenizeParams, text: TrainingText) -> Tokenizer:
    """Choose the best pieces of a larger BPE vocabulary. The docstring of this module says why not by `tokenizers`."""
    counted = text.counted(tokenizer)
    alphabet = [*_alphabet(tokenizer, params.vocab_size, counted), _METASPACE]
    pieces = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=_CANDIDATES_PER_PIECE * params.vocab_size,
        min_frequency=params.min_frequency,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        max_token_length=MOST_CHARACTERS,
        show_progress=False,
    )
    counts = _word_counts(tokenizer, counted.words)
    _train_on_words(pieces, counts, trainer)
    candidates = sorted(pieces.get_vocab())
    words = {word: count for word, count in counts.items() if count >= params.min_frequency}
    scores = learn_scores(words, candidates, params.vocab_size - len(_SPECIAL))
    # A score of 0 would win against any pieces, but the brackets of a special token keep it out of every word.
    vocabulary = [(token, 0.0) for token in _SPECIAL] + list(scores.items())
    tokenizer.model = models.Unigram(vocabulary, unk_id=_SPECIAL.index(_UNKNOWN), byte_fallback=False)
    tokenizer.add_special_tokens(_SPECIAL)
    return tokenizer


def _word_counts(tokenizer: Tokenizer, frequent: FrequentWords) -> dict[str, int]:
    """Return the counts of words as normalizer and pre-tokenizer make them of the words of a text."""
    counts: Counter[str] = Counter()
    for text, count in zip(frequent.words, frequent.count_U.tolist(), strict=True):
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
            counts[word] += count
    return counts


def _train_on_words(tokenizer: Tokenizer, counts: dict[str, int], trainer: trainers.Trainer) -> None:
    """Show `trainer` each word as often as it was counted.

    A trainer takes texts only. No word has a blank, so a cut at blanks returns the words, in a third of the time that
    the tokenizer's own rules take for every occurrence.
    """
    tokenizer.normalizer, tokenizer.pre_tokenizer = None, pre_tokenizers.CharDelimiterSplit(" ")
    tokenizer.train_from_iterator(FrequentWords.of(counts).as_texts(), trainer)


def _normalizer(form: normalizers.Normalizer, params: TokenizeParams) -> normalizers.Normalizer:
    return normalizers.Sequence([form, normalizers.Lowercase()]) if params.lowercase else form


def _no_text() -> DataError:
    return DataError("the training split has no text for a vocabulary", do="see metrics/preprocess.json for why")


def _alphabet(tokenizer: Tokenizer, vocab_size: int, counted: CountedText) -> list[str]:
    """Return the most frequent characters that the alphabet may hold, sorted; ties go to the lower code point.

    Raises:
        DataError: the text is empty.
    """
    counts = _character_counts(tokenizer.normalizer, counted.code_point_counts)
    if not counts.any():
        raise _no_text()
    by_count = np.argsort(-counts, kind="stable")
    num_covering = int(np.searchsorted(np.cumsum(counts[by_count]), _CHARACTER_COVERAGE * counts.sum())) + 1
    kept = by_count[: min(num_covering, int(_MOST_ALPHABET_SHARE * vocab_size))]
    return [chr(code_point) for code_point in sorted(kept.tolist())]


def _character_counts(normalizer: normalizers.Normalizer, raw: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the count of each code point in normalized text, without white space.

    Each distinct character is normalized instead of the text: the same result for text in NFC, for a thousandth of the
    work.
    """
    counts = np.zeros_like(raw)
    for code_point in np.flatnonzero(raw).tolist():
        for character in normalizer.normalize_str(chr(code_point)):
            if not character.isspace():
                counts[ord(character)] += raw[code_point]
    return counts


def _is_own_word(character: str) -> bool:
    """Return whether BERT's pre-tokenizer makes the character a word of its own, so that it never continues one."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")


ALGORITHMS: Mapping[str, Algorithm] = {
    "wordpiece": Algorithm(_untrained_wordpiece, _train_wordpiece),
    "bpe": Algorithm(_untrained_bpe, _train_bpe),
    "unigram": Algorithm(_untrained_unigram, _train_unigram),
}
