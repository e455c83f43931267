"""Split docstrings into summary line and description (PEP 257)."""

import re
from dataclasses import dataclass

_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")
_SENTENCE_END = re.compile(r"[.!?]\s+(?=[A-Z`\"'(\[:*])")
_SIGNATURE = re.compile(r"[\w.*]+\([^\n]*\)(?:\s*->\s*[^\n]*)?\s*(?:\n|$)")
"""Signature such as `add(x, y, /) -> array`, with which docstrings of compiled functions begin."""
_HIDDEN = "this"
_LETTER = "\ua500"
"""Placeholder for a name during the search, a letter of the Vai script: compiling a pattern with the name itself takes
longer than searching the text. A text that contains the letter keeps its names.
"""
_ANYWHERE = re.compile(rf"\b(?:[\w.]+\.)?{_LETTER}\b")
_AS_CODE = re.compile(rf"(?:\b[\w.]+\.{_LETTER}\b|\b{_LETTER}\b(?=\s?\()|(?<=`){_LETTER}(?=`))")


@dataclass(frozen=True, slots=True)
class Docstring:
    summary: str
    """First sentence, or first paragraph if it is one sentence, in one line."""
    description: str
    """Rest of the docstring, in one line; may be empty."""


def parted(text: str) -> Docstring:
    """Split a docstring after the first sentence of its first paragraph, without its signature."""
    whole = text.strip()
    signature = _SIGNATURE.match(whole)
    if signature:
        whole = whole[signature.end() :].strip()
    first, *others = _PARAGRAPH_END.split(whole, maxsplit=1)
    end = _SENTENCE_END.search(first)
    summary, rest = (first, "") if end is None else (first[: end.start() + 1], first[end.end() :])
    return Docstring(_in_one_line(summary), _in_one_line(" ".join([rest, *others])))


def without_name(text: str, qualified_name: str) -> str:
    """Return `text` with the qualified name and its last part replaced by `this`, because a person who searches for a
    function does not know its name. A name that is a plain word is only replaced in a context of code: before a
    parenthesis, after a dot, or between backquotes.
    """
    name = qualified_name.rpartition(".")[2]
    if not name or name not in text or _LETTER in text:
        return text
    is_plain_word = name.isalpha() and name.islower()
    pattern = _AS_CODE if is_plain_word else _ANYWHERE
    words = text.replace(name, _LETTER).split(" ")
    for place, word in enumerate(words):
        if _LETTER in word:  # searching the whole text would try every word
            call = " (" if "".join(words[place + 1 : place + 2]).startswith("(") else ""
            words[place] = pattern.sub(_HIDDEN, word + call).removesuffix(call)
    return " ".join(words).replace(_LETTER, name)


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
