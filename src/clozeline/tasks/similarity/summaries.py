"""Docstrings as their authors wrote them: a line that sums up, then the description (PEP 257)."""

import re
from dataclasses import dataclass

_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")
_SENTENCE_END = re.compile(r"[.!?]\s+(?=[A-Z`\"'(\[:*])")
_SIGNATURE = re.compile(r"[\w.*]+\([^\n]*\)(?:\s*->\s*[^\n]*)?\s*(?:\n|$)")
"""`add(x, y, /) -> array`, as compiled functions begin theirs: it is no sentence."""
_HIDDEN = "this"
_LETTER = "\ua500"
"""Of the Vai script. It stands for a name while that is looked for: a pattern with the name itself would take longer to
make than a text to read. A text that has the letter keeps its names.
"""
_ANYWHERE = re.compile(rf"\b(?:[\w.]+\.)?{_LETTER}\b")
_AS_CODE = re.compile(rf"(?:\b[\w.]+\.{_LETTER}\b|\b{_LETTER}\b(?=\s?\()|(?<=`){_LETTER}(?=`))")


@dataclass(frozen=True, slots=True)
class Docstring:
    summary: str
    """One line."""
    description: str
    """All the rest, without white space that lays it out; empty if there is none."""


def parted(text: str) -> Docstring:
    """The first sentence of the first paragraph, and what follows it."""
    whole = text.strip()
    signature = _SIGNATURE.match(whole)
    if signature:
        whole = whole[signature.end() :].strip()
    first, *others = _PARAGRAPH_END.split(whole, maxsplit=1)
    end = _SENTENCE_END.search(first)
    summary, rest = (first, "") if end is None else (first[: end.start() + 1], first[end.end() :])
    return Docstring(_in_one_line(summary), _in_one_line(" ".join([rest, *others])))


def without_name(text: str, qualified_name: str) -> str:
    """`text` in which the last part of a qualified name, and all of it, is `this`: whoever looks for a function does
    not know what it is called. Names that are plain words are told from words by standing as code does: before a
    parenthesis, behind a dot, or between back quotes.
    """
    name = qualified_name.rpartition(".")[2]
    if not name or name not in text or _LETTER in text:
        return text
    is_plain_word = name.isalpha() and name.islower()
    pattern = _AS_CODE if is_plain_word else _ANYWHERE
    words = text.replace(name, _LETTER).split(" ")
    for place, word in enumerate(words):
        if _LETTER in word:  # a search through all the text would stop at every word
            call = " (" if "".join(words[place + 1 : place + 2]).startswith("(") else ""
            words[place] = pattern.sub(_HIDDEN, word + call).removesuffix(call)
    return " ".join(words).replace(_LETTER, name)


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
