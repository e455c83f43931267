"""The names of params that a message gives a person to change."""

import re

from pydantic import BaseModel

from clozeline.params.section import section_in

_NAMED = re.compile(r"`([a-z0-9_.]+)(?:: [^`]+)?`")


def named_in(text: str) -> list[str]:
    """`key` or `key: value`, between backticks."""
    return _NAMED.findall(text)


def is_knob_of(section: type[BaseModel] | None, key: str) -> bool:
    """`key`: dotted, from `section` on."""
    first, _, rest = key.partition(".")
    if section is None or first not in section.model_fields:
        return False
    return not rest or is_knob_of(section_in(section.model_fields[first].annotation), rest)
