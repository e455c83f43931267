"""Encodes each distinct word once: the same ids as encoding whole texts, several times faster.

Text repeats its words; `tokenizers` normalizes and splits each one anew. Where a tokenizer cuts at spaces whatever
stands around them, a text's ids are its words' ids back to back, and words can be looked up.

Shapes: D texts, N their tokens, W words of all texts.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from clozeline.tokens.shards import span_positions

Cut = Callable[[str], list[str]]

BLANKS = r"\s+"
"""What the Unigram tokenizer makes one space of."""

_MOST_WORDS = 2**20
"""Words kept between batches (some 200 MiB); when there are more, the cache starts anew."""


@dataclass(frozen=True)
class Encoded:
    """The ids of some texts, back to back."""

    tokens_N: npt.NDArray[np.uint32]
    lengths_D: npt.NDArray[np.int64]


class WordCache:
    """The words seen so far, and their ids back to back in one array."""

    def __init__(self, tokenizer: Tokenizer, cut: Cut) -> None:
        self._tokenizer = tokenizer
        self._cut = cut
        self._forget()

    @classmethod
    def create(cls, tokenizer: Tokenizer) -> Self:
        """A cache for `tokenizer`; where words are not independent of each other, a whole text is one word."""
        return cls(tokenizer, _cut_for(tokenizer))

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Ids of each text, without special tokens around it."""
        if len(self._ordinals) > _MOST_WORDS:
            self._forget()
        words_D = [self._cut(text) for text in texts]
        words_W = list(chain.from_iterable(words_D))
        self._learn(sorted(set(words_W).difference(self._ordinals)))
        num_words_D = [len(words) for words in words_D]
        ordinal_W = np.fromiter(map(self._ordinals.__getitem__, words_W), np.int64, len(words_W))
        length_W = self._lengths[ordinal_W]
        ends_W = np.append(0, np.cumsum(length_W))
        return Encoded(
            tokens_N=self._tokens[span_positions(self._starts[ordinal_W], length_W)],
            lengths_D=np.diff(ends_W[np.append(0, np.cumsum(num_words_D))]),
        )

    def _forget(self) -> None:
        self._ordinals: dict[str, int] = {}
        self._tokens = np.zeros(0, np.uint32)
        self._starts = np.zeros(0, np.int64)
        self._lengths = np.zeros(0, np.int64)

    def _learn(self, words: list[str]) -> None:
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(words, add_special_tokens=False)]
        lengths = np.array([len(word_ids) for word_ids in ids], dtype=np.int64)
        starts = len(self._tokens) + np.cumsum(lengths) - lengths
        flat = np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths.sum()))
        self._ordinals.update(zip(words, range(len(self._ordinals), len(self._ordinals) + len(words)), strict=True))
        self._tokens = np.concatenate([self._tokens, flat])
        self._starts = np.concatenate([self._starts, starts])
        self._lengths = np.concatenate([self._lengths, lengths])


def _cut_at_blanks(text: str) -> list[str]:
    """For tokenizers that throw whitespace away: an empty word has no tokens."""
    return text.replace("\n", " ").split(" ")


_BEFORE_BLANKS = re.compile(r"\s*\S+|\s+")
_ONLY_PYTHON_SAYS_SPACE = re.compile(r"[\x1c-\x1f]")


def _cut_before_blanks(text: str) -> list[str]:
    """For GPT-2's pattern, where spaces belong to the word after them and no match goes from a letter into a space."""
    return [text] if _ONLY_PYTHON_SAYS_SPACE.search(text) else _BEFORE_BLANKS.findall(text)


def _whole(text: str) -> list[str]:
    return [text]


@dataclass(frozen=True)
class _Independence:
    """A kind of tokenizer for which `cut` gives words that are encoded alike alone and in a text."""

    pre_tokenizer: Mapping[str, object]
    """Must be in the tokenizer.json, with these values."""
    normalizers: frozenset[str]
    """Other ones may look across the cut."""
    needed_normalizers: frozenset[str]
    cut: Cut


_CHARACTERWISE = frozenset({"NFC", "NFD", "Lowercase"})

_INDEPENDENT = (
    _Independence(
        {"type": "BertPreTokenizer"},
        _CHARACTERWISE | {"BertNormalizer", "NFKC", "NFKD", "StripAccents"},
        frozenset(),
        _cut_at_blanks,
    ),
    _Independence(
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        _CHARACTERWISE,
        frozenset(),
        _cut_before_blanks,
    ),
    # Replace is the one of our own Unigram: it makes one space of any white space, and Strip takes it off the ends.
    _Independence(
        {"type": "Metaspace", "prepend_scheme": "always", "split": True},
        _CHARACTERWISE | {"NFKC", "Replace", "Strip"},
        frozenset({"Replace", "Strip"}),
        _cut_at_blanks,
    ),
)


def _cut_for(tokenizer: Tokenizer) -> Cut:
    description = json.loads(tokenizer.to_str())
    if not all(token["special"] for token in description["added_tokens"]):
        return _whole
    found = _normalizer_types(description["normalizer"])
    for kind in _INDEPENDENT:
        is_pre_tokenizer = kind.pre_tokenizer.items() <= (description["pre_tokenizer"] or {}).items()
        if is_pre_tokenizer and kind.needed_normalizers <= found <= kind.normalizers:
            return kind.cut
    return _whole


def _normalizer_types(description: dict[str, Any] | None) -> frozenset[str]:
    if description is None:
        return frozenset()
    if description["type"] == "Sequence":
        return frozenset().union(*(_normalizer_types(part) for part in description["normalizers"]))
    is_known_replace = description["type"] != "Replace" or description["pattern"] == {"Regex": BLANKS}
    return frozenset({description["type"] if is_known_replace else "unknown"})
