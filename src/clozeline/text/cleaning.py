"""Cleaning of texts: one Unicode form, no entities, no control characters, plain white space."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType

import ftfy

_PLAIN = re.compile(r"[\t\n\x20-\x25\x27-\x7e]*")
"""ASCII without `&` and control characters: ftfy has nothing to do."""
_ODD_LINE = re.compile(r"^.*[^\t\n\x20-\x25\x27-\x7e].*\n?", re.MULTILINE)
"""Lines with other characters. ftfy works line by line and is slow, so it gets only these."""
_NEWLINES = re.compile(r"\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"
)
_HALVES = re.compile("[\ud800-\udfff]")
"""Lone surrogates, left by cutting a text inside an emoji; they have no UTF-8."""
ALTERATIONS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "lone_surrogates": _HALVES,
        "nul": re.compile("\x00"),
        "control_characters": re.compile("[\x01-\x08\x0e-\x1b\x1f\x7f]"),
        "zero_width": re.compile("[\u00ad\u200b\u2060-\u2064\ufeff]"),
        "direction_marks": re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]"),
    }
)
"""Kind of character that cleaning removes (or replaces, a lone surrogate by `?`) → its pattern."""
_ALTERED = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\ud800-\udfff]"
)
_WIDE_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_INNER_BLANKS = re.compile(r"(?<=\S)[ \t]+")
_INNER_SPACES = re.compile(r"  (?<=\S  ) *")
"""Ten times as fast for text without tabs, because it stops at two spaces instead of at each."""
_LINE_ENDS = re.compile(r"[ \t]+$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{3,}")
_WORD = re.compile(r"\S+")
_BREAKS = ("\n\n", "\n", ". ", " ")

_WITHOUT_ENTITIES = ftfy.TextFixerConfig(
    unescape_html=False,
    uncurl_quotes=False,  # keep the author's typography
    fix_latin_ligatures=False,
    fix_character_width=False,
    normalization="NFC",
    explain=False,
)
_WITH_ENTITIES = _WITHOUT_ENTITIES._replace(unescape_html=True)


def clean(text: str, *, decode_entities: bool) -> str:
    """Return `text` in Unicode NFC with mojibake, entities, control characters and odd white space repaired.

    Indentation and single blank lines stay, because code and lists need them. Other runs of spaces become one space.
    """
    if not _PLAIN.fullmatch(text):
        text = _HALVES.sub("?", text)
        config = _WITH_ENTITIES if decode_entities else _WITHOUT_ENTITIES
        text = _ODD_LINE.sub(lambda line: ftfy.fix_text(line[0], config), text)
        text = _NEWLINES.sub("\n", text)
        text = _INVISIBLE.sub("", text)
        text = _WIDE_SPACES.sub(" ", text)
    return _with_plain_blanks(text)


def alterations(text: str) -> Iterator[str]:
    """Yield the kinds of characters in a raw `text` that cleaning does not leave in it."""
    if _ALTERED.search(text):
        yield from (kind for kind, pattern in ALTERATIONS.items() if pattern.search(text))


def _with_plain_blanks(text: str) -> str:
    """Normalize white space. Most texts need only some of the steps, and the checks are much cheaper than the steps."""
    text = (_INNER_BLANKS if "\t" in text else _INNER_SPACES).sub(" ", text)
    if " \n" in text or "\t\n" in text:
        text = _LINE_ENDS.sub("", text)
    if "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return text.strip()


def split_long(text: str, max_characters: int, max_words: int | None = None) -> list[str]:
    """Cut a text into parts of at most `max_characters` and `max_words`, between paragraphs, else lines, sentences,
    words, letters.
    """
    parts = []
    while (most := min(max_characters, _end_of_words(text, max_words))) < len(text):
        end = _last_break(text, most)
        parts.append(text[:end].rstrip())
        text = text[end:].lstrip()
    return [*parts, text] if text else parts


def _end_of_words(text: str, max_words: int | None) -> int:
    """Return the end of the last permitted word and of the white space after it."""
    if max_words is None:
        return len(text)
    following = next(islice(_WORD.finditer(text), max_words, None), None)
    return following.start() if following else len(text)


def _last_break(text: str, max_characters: int) -> int:
    """Return the position of the cut: the best kind of break that still leaves the part at least half full."""
    for mark in _BREAKS:
        place = text.rfind(mark, max_characters // 2, max_characters)
        if place > 0:
            return place + len(mark)
    return max_characters
