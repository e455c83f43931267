"""Fields that somebody named, looked for in what is there."""

import difflib
from collections.abc import Collection, Mapping

from clozeline.errors import DataError

Fields = Mapping[str, str]
"""Knob → the field that it names: messages speak of both."""
_LEAST_IN_COMMON = 3
"""Characters of a name that stands inside another, for both to be taken for the same thing."""


def check_fields(present: Collection[str], fields: Fields, place: object, *, records_before: bool = False) -> None:
    """`records_before`: there are records that have every field, so what is wrong is not the name.

    Raises:
        DataError: a field that a knob names is not among those present.
    """
    for knob, name in fields.items():
        if name not in present:
            raise DataError(
                f"{place}: there is no field `{name}`",
                given=f"fields: {', '.join(present) or 'none'}",
                expected=f"a field `{name}`, which `{knob}` names",
                do="the records before it have one: write it there too, or take the record out of the file"
                if records_before
                else _how_to_name(name, knob, [field for field in present if field not in fields.values()]),
            )


def nearest(name: str, present: Collection[str]) -> str | None:
    """The field that is likely meant by `name`; None if none is like it."""
    plain = {field.casefold(): field for field in present}
    wanted = name.casefold()
    near = difflib.get_close_matches(wanted, plain, n=1)
    inside = (field for field in plain if min(len(field), len(wanted)) >= _LEAST_IN_COMMON)
    found = near[0] if near else next((field for field in inside if field in wanted or wanted in field), None)
    return None if found is None else plain[found]


def _how_to_name(name: str, knob: str, free: Collection[str]) -> str:
    return f"set `{knob}` to {nearest(name, free) or 'one of these fields'}"
