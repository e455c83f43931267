"""Cleaning of texts: one Unicode form, no entities, no control characters, plain white space."""

import re

import ftfy

_PLAIN = re.compile(r"[\t\n\x20-\x25\x27-\x7e]*")
"""ASCII without `&` and control characters: ftfy has nothing to do."""
_ODD_LINE = re.compile(r"^.*[^\t\n\x20-\x25\x27-\x7e].*\n?", re.MULTILINE)
"""Lines with other characters. ftfy works line by line and is slow, so it gets only these."""
_NEWLINES = re.compile(r"\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"
)
_WIDE_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_INNER_BLANKS = re.compile(r"(?<=\S)[ \t]+")
_INNER_SPACES = re.compile(r"  (?<=\S  ) *")
"""Ten times as fast for text without tabs, because it stops at two spaces instead of at each."""
_LINE_ENDS = re.compile(r"[ \t]+$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{3,}")
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
        config = _WITH_ENTITIES if decode_entities else _WITHOUT_ENTITIES
        text = _ODD_LINE.sub(lambda line: ftfy.fix_text(line[0], config), text)
        text = _NEWLINES.sub("\n", text)
        text = _INVISIBLE.sub("", text)
        text = _WIDE_SPACES.sub(" ", text)
    return _with_plain_blanks(text)


def _with_plain_blanks(text: str) -> str:
    """Normalize white space. Most texts need only some of the steps, and the checks are much cheaper than the steps."""
    text = (_INNER_BLANKS if "\t" in text else _INNER_SPACES).sub(" ", text)
    if " \n" in text or "\t\n" in text:
        text = _LINE_ENDS.sub("", text)
    if "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return text.strip()


def split_long(text: str, max_characters: int) -> list[str]:
    """Cut a text into parts of at most `max_characters`, between paragraphs, else lines, sentences, words, letters."""
    parts = []
    while len(text) > max_characters:
        end = _last_break(text, max_characters)
        parts.append(text[:end].rstrip())
        text = text[end:].lstrip()
    return [*parts, text] if text else parts


def _last_break(text: str, max_characters: int) -> int:
    """Return the position of the cut: the best kind of break that still leaves the part at least half full."""
    for mark in _BREAKS:
        place = text.rfind(mark, max_characters // 2, max_characters)
        if place > 0:
            return place + len(mark)
    return max_characters
