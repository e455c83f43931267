"""Names of params that a message tells the user to change."""

import re

from pydantic import BaseModel

from clozeline.params.schema import section_in

_NAMED = re.compile(r"`([a-z0-9_.]+)(?:: [^`]+)?`")


def named_in(text: str) -> list[str]:
    """Return each key that stands between backticks as `key` or `key: value`."""
    return _NAMED.findall(text)


def is_knob_of(section: type[BaseModel] | None, key: str) -> bool:
    """Return whether `key`, dotted and relative to `section`, is one of its fields."""
    first, _, rest = key.partition(".")
    if section is None or first not in section.model_fields:
        return False
    return not rest or is_knob_of(section_in(section.model_fields[first].annotation), rest)
