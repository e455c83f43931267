"""Cache of the token ids of words, from which a text is tokenized in a sixth of the time.

It works for tokenizers that encode words independently (word_cuts.py). Other tokenizers, and texts with a special token
that may absorb its neighbours, bypass the cache.
"""

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from tokenizers import AddedToken, Tokenizer

from clozeline.inference.word_cuts import (
    BEFORE_BLANKS,
    MARK,
    ONLY_PYTHON_SAYS_SPACE,
    PUNCTUATION,
    PUNCTUATION_BLANKS,
    WORD_BLANKS,
    Cut,
    cut_of,
)

_MOST_WORDS = 2**14
"""Number of words in each of two generations. When one is full, the other is dropped, except words used since."""
_MOST_CHARACTERS = 24
_MOST_IDS = 8
"""Largest number of ids of a cached word. 32,768 words take at most about 20 MB; English ones about 4 MB."""
_MOST_NEW_WORDS = 16
"""Number of new words that one text adds. A text with more is encoded as a whole, which is faster."""
_PROBES = ("a", "a b")


@dataclass(frozen=True)
class _Words:
    pattern: str
    wholes: tuple[str, ...] = ()
    """Patterns of text that cannot be cut into words."""
    ends_before: str = ""
    """Characters that are always words of their own."""


_WORDS: Mapping[Cut, _Words] = {
    "at punctuation": _Words(
        f"[{re.escape(PUNCTUATION)}]|[^{re.escape(PUNCTUATION + PUNCTUATION_BLANKS)}]+", ends_before=PUNCTUATION
    ),
    "at blanks": _Words(f"[^{WORD_BLANKS}]+"),
    "at blanks unless marked": _Words(f"[^{WORD_BLANKS}]+", (MARK,)),
    "before blanks": _Words(BEFORE_BLANKS.pattern, (ONLY_PYTHON_SAYS_SPACE.pattern,)),
}


class KnownWords:
    """Cache of recent words. It is thread-safe: an update by one thread does not change the result of another."""

    def __init__(self, tokenizer: Tokenizer, words: _Words, before: list[int], after: list[int]) -> None:
        self._tokenizer = tokenizer
        # The tokenizer too prefers the longest match.
        specials = sorted(tokenizer.get_added_tokens_decoder().values(), key=lambda token: -len(token.content))
        cut = [token.content for token in specials if _is_a_word(token, words)]
        wholes = [re.escape(token.content) for token in specials if token.content not in cut]
        self._words = re.compile("|".join([*map(re.escape, cut), words.pattern]))
        self._whole = re.compile("|".join([*wholes, *words.wholes]) or r"(?!)")
        self._before, self._after = before, after
        self._known: dict[str, tuple[int, ...]] = {}
        self._earlier: dict[str, tuple[int, ...]] = {}

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """Return the cache of a tokenizer that neither pads nor truncates; None if its words are not independent."""
        cut, around = cut_of(tokenizer), _around(tokenizer)
        if cut is None or around is None:
            return None
        # A token that is matched in the normalized text may match although the raw text does not contain it.
        if any(token.normalized for token in tokenizer.get_added_tokens_decoder().values()):
            return None
        return cls(tokenizer, _WORDS[cut], *around)

    @property
    def num_words(self) -> int:
        return len(self._known) + len(self._earlier)

    def ids(self, text: str) -> list[int] | None:
        """Return the ids of `text` with special tokens around it; None if the tokenizer has to encode it."""
        if self._whole.search(text):
            return None
        words, known = self._words.findall(text), self._known
        try:
            return self._joined(words, known)
        except KeyError:
            pass
        missing, earlier = dict.fromkeys(word for word in words if word not in known), self._earlier
        found = {word: earlier[word] for word in missing if word in earlier}
        new = [word for word in missing if word not in found]
        found |= self._encoded(new[:_MOST_NEW_WORDS])
        self._keep(found)
        return None if len(new) > _MOST_NEW_WORDS else self._joined(words, ChainMap(found, known))

    def _joined(self, words: Iterable[str], ids: Mapping[str, tuple[int, ...]]) -> list[int]:
        """Return the ids of all words, with special tokens around them.

        Raises:
            KeyError: the ids of a word are missing.
        """
        joined = [*self._before]
        for word in words:
            joined += ids[word]
        joined += self._after
        return joined

    def _encoded(self, words: list[str]) -> dict[str, tuple[int, ...]]:
        encodings = self._tokenizer.encode_batch_fast(words, add_special_tokens=False)
        return {word: tuple(encoding.ids) for word, encoding in zip(words, encodings, strict=True)}

    def _keep(self, found: Mapping[str, tuple[int, ...]]) -> None:
        if len(self._known) >= _MOST_WORDS:
            self._earlier, self._known = self._known, {}
        self._known.update(
            {word: ids for word, ids in found.items() if len(word) <= _MOST_CHARACTERS and len(ids) <= _MOST_IDS}
        )


def _is_a_word(token: AddedToken, words: _Words) -> bool:
    """Whether a special token is always a word of its own and absorbs nothing beside it."""
    takes_more = token.lstrip or token.rstrip or token.single_word
    return not takes_more and token.content.startswith(tuple(words.ends_before))


def _around(tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
    """Return the special tokens before and after a text; None if they differ between texts."""
    alone, framed = (tokenizer.encode(_PROBES[0], add_special_tokens=special).ids for special in (False, True))
    for start in range(len(framed) - len(alone) + 1):
        before, after = framed[:start], framed[start + len(alone) :]
        if all(
            [*before, *tokenizer.encode(probe, add_special_tokens=False).ids, *after] == tokenizer.encode(probe).ids
            for probe in _PROBES
        ):
            return before, after
    return None
