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

_MOST_WORDS = 2**17
"""Words kept between batches (some 25 MiB); when there are more, the cache starts anew."""
_WORDS_AT_A_TIME = 4096
"""The encoding of a word weighs a hundred times its ids."""


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

    def __len__(self) -> int:
        return len(self._ordinals)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Ids of each text, without special tokens around it."""
        if len(self) > _MOST_WORDS:
            self._forget()
        words_D = [self._cut(text) for text in texts]
        words_W = list(chain.from_iterable(words_D))
        self._learn(sorted(set(words_W).difference(self._ordinals)))
        first_word_D = np.cumsum([0, *map(len, words_D)])
        ordinal_W = np.fromiter(map(self._ordinals.__getitem__, words_W), np.int64, len(words_W))
        length_W = self._lengths[ordinal_W]
        ends_W = np.append(0, np.cumsum(length_W))
        return Encoded(
            tokens_N=self._tokens[span_positions(self._starts[ordinal_W], length_W)],
            lengths_D=np.diff(ends_W[first_word_D]),
        )

    def _forget(self) -> None:
        self._ordinals: dict[str, int] = {}
        self._tokens = np.zeros(0, np.uint32)
        self._starts = np.zeros(0, np.int64)
        self._lengths = np.zeros(0, np.int64)

    def _learn(self, words: list[str]) -> None:
        ids = [
            encoding.ids
            for start in range(0, len(words), _WORDS_AT_A_TIME)
            for encoding in self._tokenizer.encode_batch_fast(
                words[start : start + _WORDS_AT_A_TIME], add_special_tokens=False
            )
        ]
        lengths = np.array([len(word_ids) for word_ids in ids], dtype=np.int64)
        starts = len(self._tokens) + np.cumsum(lengths) - lengths
        flat = np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths.sum()))
        self._ordinals.update(zip(words, range(len(self), len(self) + len(words)), strict=True))
        self._tokens = np.concatenate([self._tokens, flat])
        self._starts = np.concatenate([self._starts, starts])
        self._lengths = np.concatenate([self._lengths, lengths])


def _cut_at_blanks(text: str) -> list[str]:
    """For tokenizers that throw whitespace away: an empty word has no tokens."""
    return text.replace("\n", " ").split(" ")


_ASCII_WORDS = re.compile(r"[^ \t\n\r!-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]")


def _cut_at_punctuation(text: str) -> list[str]:
    """For BERT's pre-tokenizer, to which each ASCII punctuation mark is a word; other marks stay inside their word."""
    return _ASCII_WORDS.findall(text)


def _cut_at_blanks_unless_marked(text: str) -> list[str]:
    """For Metaspace, which puts a mark before a word unless a mark stands there already, be it the text's own."""
    return [text] if "▁" in text else _cut_at_blanks(text)


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

    pre_tokenizers: Sequence[Mapping[str, object]]
    """What the tokenizer.json must say of each, at least."""
    normalizers: frozenset[object]
    """Other ones may look across the cut."""
    needed_normalizers: frozenset[object]
    cut: Cut


_CHARACTERWISE: frozenset[object] = frozenset({"NFC", "NFD", "Lowercase"})

# The first row that fits is taken.
_INDEPENDENT = (
    # Without NFC, which makes one character of = and a stroke after it.
    _Independence(
        [{"type": "BertPreTokenizer"}],
        frozenset({"BertNormalizer", "NFD", "Lowercase", "StripAccents"}),
        frozenset(),
        _cut_at_punctuation,
    ),
    _Independence(
        [{"type": "BertPreTokenizer"}],
        _CHARACTERWISE | {"BertNormalizer", "NFKC", "NFKD", "StripAccents"},
        frozenset(),
        _cut_at_blanks,
    ),
    _Independence(
        [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}],
        _CHARACTERWISE,
        frozenset(),
        _cut_before_blanks,
    ),
    # Replace is the one of our own Unigram: it makes one space of any white space, and Strip takes it off the ends.
    _Independence(
        [
            {"type": "Metaspace", "prepend_scheme": "always", "split": True},
            {"type": "Punctuation", "behavior": "Isolated"},
        ],
        _CHARACTERWISE | {"NFKC", "Replace", "Strip"},
        frozenset({"Replace", "Strip"}),
        _cut_at_blanks_unless_marked,
    ),
)


def _cut_for(tokenizer: Tokenizer) -> Cut:
    description = json.loads(tokenizer.to_str())
    if not all(token["special"] for token in description["added_tokens"]):
        return _whole
    pre_tokenizers = _steps(description["pre_tokenizer"], "pretokenizers")
    found = frozenset(_normalizer_type(step) for step in _steps(description["normalizer"], "normalizers"))
    for kind in _INDEPENDENT:
        if _are(pre_tokenizers, kind.pre_tokenizers) and kind.needed_normalizers <= found <= kind.normalizers:
            return kind.cut
    return _whole


def _steps(description: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """A component of a tokenizer.json as the list of its steps, sequences in sequences unfolded."""
    if description is None:
        return []
    if description["type"] != "Sequence":
        return [description]
    return [step for part in description[key] for step in _steps(part, key)]


def _are(found: Sequence[Mapping[str, object]], wanted: Sequence[Mapping[str, object]]) -> bool:
    return len(found) == len(wanted) and all(
        want.items() <= step.items() for step, want in zip(found, wanted, strict=True)
    )


def _normalizer_type(step: Mapping[str, object]) -> object:
    is_other_replace = step["type"] == "Replace" and step["pattern"] != {"Regex": BLANKS}
    return "another Replace" if is_other_replace else step["type"]
