"""The ids of a text from those of its words, which are encoded when they first come: a sixth of the time for a text.

For tokenizers whose words are independent of each other (word_independence.py); of every other, and of a text with a
special token that may take what is beside it, nothing is known here, and the tokenizer is asked.
"""

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from tokenizers import AddedToken, Tokenizer

from clozeline.inference.independence import (
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
"""Of each of two generations: when one is full the other is forgotten, but for what has come since."""
_MOST_CHARACTERS = 24
_MOST_IDS = 8
"""Of a word that is kept: 32,768 of any make at most some 20 MB, of English some 4."""
_MOST_NEW_WORDS = 16
"""Of a text: with more of them it is sooner encoded as a whole, and so many are learned."""
_PROBES = ("a", "a b")


@dataclass(frozen=True)
class _Words:
    pattern: str
    wholes: tuple[str, ...] = ()
    """Patterns of what a text does not hold that is cut."""
    ends_before: str = ""
    """No word but a single character begins with one of these, or has it within."""


_WORDS: Mapping[Cut, _Words] = {
    "at punctuation": _Words(
        f"[{re.escape(PUNCTUATION)}]|[^{re.escape(PUNCTUATION + PUNCTUATION_BLANKS)}]+", ends_before=PUNCTUATION
    ),
    "at blanks": _Words(f"[^{WORD_BLANKS}]+"),
    "at blanks unless marked": _Words(f"[^{WORD_BLANKS}]+", (MARK,)),
    "before blanks": _Words(BEFORE_BLANKS.pattern, (ONLY_PYTHON_SAYS_SPACE.pattern,)),
}


class KnownWords:
    """The words that came of late. Safe to call from many threads: what one learns changes nothing for another."""

    def __init__(self, tokenizer: Tokenizer, words: _Words, before: list[int], after: list[int]) -> None:
        self._tokenizer = tokenizer
        # As the tokenizer looks for them: the longest that fits.
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
        """Of a tokenizer that neither pads nor truncates; None: a text's ids are not those of its words."""
        cut, around = cut_of(tokenizer), _around(tokenizer)
        if cut is None or around is None:
            return None
        # One that is looked for in the normalized text may be there though the text does not have it.
        if any(token.normalized for token in tokenizer.get_added_tokens_decoder().values()):
            return None
        return cls(tokenizer, _WORDS[cut], *around)

    @property
    def num_words(self) -> int:
        return len(self._known) + len(self._earlier)

    def ids(self, text: str) -> list[int] | None:
        """What the tokenizer gives, special tokens around the text's own; None: it has to be asked."""
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
        """Raises KeyError: of a word there are none."""
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
    """Whether a special token is one wherever it stands, and takes nothing beside it."""
    takes_more = token.lstrip or token.rstrip or token.single_word
    return not takes_more and token.content.startswith(tuple(words.ends_before))


def _around(tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
    """Special tokens before a text and after it; None: they are not the same for each."""
    alone, framed = (tokenizer.encode(_PROBES[0], add_special_tokens=special).ids for special in (False, True))
    for start in range(len(framed) - len(alone) + 1):
        before, after = framed[:start], framed[start + len(alone) :]
        if all(
            [*before, *tokenizer.encode(probe, add_special_tokens=False).ids, *after] == tokenizer.encode(probe).ids
            for probe in _PROBES
        ):
            return before, after
    return None
