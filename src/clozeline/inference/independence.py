"""Which tokenizers encode a word alike alone and in a text, and where they cut: a text's ids are its words' ids.

Two rooms look words up instead of encoding them anew: training cuts millions of texts by the class of each byte
(tokenizing/word_cache.py), a server cuts one by a pattern (inference/known_words.py). What both rest on stands here.
"""

import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import Tokenizer

Cut = Literal["at punctuation", "at blanks", "at blanks unless marked", "before blanks"]

BLANKS = r"\s+"
"""What the Unigram tokenizer makes one space of."""
WORD_BLANKS = " \n"
"""Between words of tokenizers that throw whitespace away; other blanks stay inside a word."""
PUNCTUATION_BLANKS = " \t\n\r"
PUNCTUATION = string.punctuation
"""To BERT's pre-tokenizer each ASCII punctuation mark is a word; other marks stay inside their word."""
MARK = "▁"
"""Metaspace puts one before a word unless it stands there already, be it the text's own."""
BEFORE_BLANKS = re.compile(r"\s*\S+|\s+")
"""Of GPT-2's pattern, where spaces belong to the word after them and no match goes from a letter into a space."""
ONLY_PYTHON_SAYS_SPACE = re.compile(r"[\x1c-\x1f]")

_CHARACTERWISE: frozenset[object] = frozenset({"NFC", "NFD", "Lowercase"})


@dataclass(frozen=True)
class _Independence:
    """A kind of tokenizer for which `cut` gives words that are encoded alike alone and in a text."""

    pre_tokenizers: Sequence[Mapping[str, object]]
    """What the tokenizer must say of each, at least."""
    normalizers: frozenset[object]
    """Other ones may look across the cut."""
    needed_normalizers: frozenset[object]
    cut: Cut


# The first row that fits is taken.
_INDEPENDENT = (
    # Without NFC, which makes one character of = and a stroke after it.
    _Independence(
        [{"type": "BertPreTokenizer"}],
        frozenset({"BertNormalizer", "NFD", "Lowercase", "StripAccents"}),
        frozenset(),
        "at punctuation",
    ),
    _Independence(
        [{"type": "BertPreTokenizer"}],
        _CHARACTERWISE | {"BertNormalizer", "NFKC", "NFKD", "StripAccents"},
        frozenset(),
        "at blanks",
    ),
    _Independence(
        [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}],
        _CHARACTERWISE,
        frozenset(),
        "before blanks",
    ),
    # Replace is the one of our own Unigram: it makes one space of any white space, and Strip takes it off the ends.
    _Independence(
        [
            {"type": "Metaspace", "prepend_scheme": "always", "split": True},
            {"type": "Punctuation", "behavior": "Isolated"},
        ],
        _CHARACTERWISE | {"NFKC", "Replace", "Strip"},
        frozenset({"Replace", "Strip"}),
        "at blanks unless marked",
    ),
)


def cut_of(tokenizer: Tokenizer) -> Cut | None:
    """Where texts are cut into words that `tokenizer` encodes alike alone; None: its words are not independent."""
    if not all(token.special for token in tokenizer.get_added_tokens_decoder().values()):
        return None
    pre_tokenizers = _steps(_description(tokenizer.pre_tokenizer), "pretokenizers")
    found = frozenset(_normalizer_type(step) for step in _steps(_description(tokenizer.normalizer), "normalizers"))
    for kind in _INDEPENDENT:
        if _are(pre_tokenizers, kind.pre_tokenizers) and kind.needed_normalizers <= found <= kind.normalizers:
            return kind.cut
    return None


def _description(component: Any) -> dict[str, Any] | None:
    """As tokenizer.json has it, without the vocabulary, which may be of a quarter of a million words."""
    described: dict[str, Any] | None = component and json.loads(component.__getstate__())
    return described


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
