"""Tokenizers that encode words independently, and how each splits a text into words.

The ids of a text are then those of its words, in order. Two word caches rely on this: training cuts millions of texts
by the class of each byte (tokenizing/encoding.py), a server cuts one text by a pattern (inference/tokenization.py).
"""

import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import Tokenizer

Cut = Literal["at punctuation", "at blanks", "at blanks unless marked", "before blanks"]

# Pattern that the Unigram tokenizer replaces by one space.
BLANKS = r"\s+"
# Separators of words for tokenizers that drop white space; other blanks stay inside a word.
WORD_BLANKS = " \n"
PUNCTUATION_BLANKS = " \t\n\r"
# Characters that are words of their own, as for BERT's pre-tokenizer; other punctuation stays inside its word.
PUNCTUATION = string.punctuation
# Mark that Metaspace puts before a word unless one is there already, even one of the text itself.
MARK = "▁"
# Words for GPT-2's pattern, in which spaces belong to the word after them and no match spans a letter and a space.
BEFORE_BLANKS = re.compile(r"\s*\S+|\s+")
ONLY_PYTHON_SAYS_SPACE = re.compile(r"[\x1c-\x1f]")

_CHARACTERS: frozenset[object] = frozenset({"NFC", "NFD", "Lowercase"})


@dataclass(frozen=True)
class _Independence:
    """A kind of tokenizer for which `cut` gives words that have the same ids alone and in a text."""

    pre_tokenizers: Sequence[Mapping[str, object]]  # required settings of each pre-tokenizer, in order
    normalizers: frozenset[object]  # allowed normalizers; others may depend on text beyond the word
    needed_normalizers: frozenset[object]
    cut: Cut


# The first row that matches is used.
_INDEPENDENT = (
    # Without NFC, which merges = and a combining stroke after it into one character.
    _Independence(
        [{"type": "BertPreTokenizer"}],
        frozenset({"BertNormalizer", "NFD", "Lowercase", "StripAccents"}),
        frozenset(),
        "at punctuation",
    ),
    _Independence(
        [{"type": "BertPreTokenizer"}],
        _CHARACTERS | {"BertNormalizer", "NFKC", "NFKD", "StripAccents"},
        frozenset(),
        "at blanks",
    ),
    _Independence(
        [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}], _CHARACTERS, frozenset(), "before blanks"
    ),
    # Replace is that of our own Unigram: it replaces any white space by one space, and Strip removes it at the ends.
    _Independence(
        [
            {"type": "Metaspace", "prepend_scheme": "always", "split": True},
            {"type": "Punctuation", "behavior": "Isolated"},
        ],
        _CHARACTERS | {"NFKC", "Replace", "Strip"},
        frozenset({"Replace", "Strip"}),
        "at blanks unless marked",
    ),
)


def cut_of(tokenizer: Tokenizer) -> Cut | None:
    """Return how to cut text into words that `tokenizer` encodes independently; None if no such cut is known."""
    if not all(token.special for token in tokenizer.get_added_tokens_decoder().values()):
        return None
    pre_tokenizers = _steps(_description(tokenizer.pre_tokenizer), "pretokenizers")
    found = frozenset(
        "another Replace" if step["type"] == "Replace" and step["pattern"] != {"Regex": BLANKS} else step["type"]
        for step in _steps(_description(tokenizer.normalizer), "normalizers")
    )
    for kind in _INDEPENDENT:
        if _are(pre_tokenizers, kind.pre_tokenizers) and kind.needed_normalizers <= found <= kind.normalizers:
            return kind.cut
    return None


def _description(component: Any) -> dict[str, Any] | None:
    """Return the component as in tokenizer.json, without the vocabulary, which may have 250,000 entries."""
    described: dict[str, Any] | None = component and json.loads(component.__getstate__())
    return described


def _steps(description: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return the steps of a component of tokenizer.json, with nested sequences flattened."""
    if description is None:
        return []
    if description["type"] != "Sequence":
        return [description]
    return [step for part in description[key] for step in _steps(part, key)]


def _are(found: Sequence[Mapping[str, object]], wanted: Sequence[Mapping[str, object]]) -> bool:
    return len(found) == len(wanted) and all(
        want.items() <= step.items() for step, want in zip(found, wanted, strict=True)
    )
