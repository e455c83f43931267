"""How entities are written as tags of words, and the one way that they are written here: IOB2.

IOB1 (Ramshaw & Marcus 1995): B- only where an entity follows another of its type. IOB2: every entity begins with B-.
IOBES, also called BILOU: its last word has E- (or L-), and an entity of one word S- (or U-). All three are read by one
rule, that of the CoNLL-2003 scorer: an entity begins at B-, S- and U-, at another type, and after whatever ended one.
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
    """The same entities, each beginning with B-.

    Raises:
        ValueError: something is not a tag; it is the error's argument.
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
    """O for what is outside of all entities."""
    return tag.partition("-")[2] or OUTSIDE
