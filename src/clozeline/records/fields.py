"""Fields that somebody named in params.yaml, looked for in what is there."""

import difflib
from collections.abc import Collection, Mapping

from clozeline.errors import DataError

Fields = Mapping[str, str]
"""Knob → the field that it names: messages speak of both."""


def check_fields(present: Collection[str], fields: Fields, place: object) -> None:
    """Raises:
    DataError: a field that a knob names is not among those present.
    """
    for knob, name in fields.items():
        if name not in present:
            near = difflib.get_close_matches(name, present, n=1)
            raise DataError(
                f"{place}: there is no field `{name}`",
                given=f"fields: {', '.join(present) or 'none'}",
                expected=f"a field `{name}`, which `{knob}` names",
                do=f"set `{knob}` to {near[0] if near else 'one of these fields'} in params.yaml",
            )
