"""Check that the fields named in the configuration exist in the data."""

import difflib
from collections.abc import Collection, Mapping

from clozeline.errors import DataError

Fields = Mapping[str, str]
"""Knob → field name. Messages mention both."""
_LEAST_IN_COMMON = 3
"""Minimum length of the shorter name when a name is suggested because one contains the other."""


def check_fields(present: Collection[str], fields: Fields, place: object, *, records_before: bool = False) -> None:
    """Check that every field is present.

    Args:
        present: names of the fields of this record.
        fields: the fields that the knobs name.
        place: location of the record, for messages.
        records_before: earlier records have every field, so the name is right and this record is wrong.

    Raises:
        DataError: a field is missing.
    """
    for knob, name in fields.items():
        if name not in present:
            raise DataError(
                f"{place}: no field `{name}`",
                given=f"fields: {', '.join(present) or 'none'}",
                expected=f"a field `{name}`, which `{knob}` names",
                do="earlier records have this field: add it to this record, or remove the record"
                if records_before
                else _remedy_for_name(name, knob, [field for field in present if field not in fields.values()]),
            )


def nearest(name: str, present: Collection[str]) -> str | None:
    """Return the field whose name is closest to `name`; None if none is close."""
    plain = {field.casefold(): field for field in present}
    wanted = name.casefold()
    near = difflib.get_close_matches(wanted, plain, n=1)
    inside = (field for field in plain if min(len(field), len(wanted)) >= _LEAST_IN_COMMON)
    found = near[0] if near else next((field for field in inside if field in wanted or wanted in field), None)
    return None if found is None else plain[found]


def _remedy_for_name(name: str, knob: str, free: Collection[str]) -> str:
    return f"set `{knob}` to {nearest(name, free) or 'one of these fields'}"
