"""Tagging schemes of entities, and their conversion to IOB2, the only one used here.

IOB1 (Ramshaw & Marcus 1995) uses B- only if an entity follows another of its type. In IOB2 every entity begins with B-.
IOBES, also called BILOU, marks the last word with E- (or L-), and an entity of one word with S- (or U-). One rule, that
of the CoNLL-2003 scorer, reads all three: an entity begins at B-, S- and U-, at a new type, and after the end of an
entity.
"""

import re
from collections.abc import Sequence

OUTSIDE = "O"
_TAG = re.compile(r"([BIESLU])-(.+)")
_BEGINS = frozenset("BSU")
_ENDS = frozenset("ESLU")


def is_tag(text: str) -> bool:
    return text == OUTSIDE or _TAG.fullmatch(text) is not None


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Return the tags of the same entities in IOB2.

    Raises:
        ValueError: a string is not a tag; the string is the error's argument.
    """
    written = []
    open_type = None
    for tag in tags:
        if tag == OUTSIDE:
            written.append(tag)
            open_type = None
            continue
        match = _TAG.fullmatch(tag)
        if match is None:
            raise ValueError(tag)
        prefix, entity_type = match.groups()
        begins = prefix in _BEGINS or entity_type != open_type
        written.append(f"{'B' if begins else 'I'}-{entity_type}")
        open_type = None if prefix in _ENDS else entity_type
    return written


def type_of(tag: str) -> str:
    """Return the entity type of a tag; O outside entities."""
    return tag.partition("-")[2] or OUTSIDE
