"""A room's error names fields of what the room was given; whoever called a command knows them by other names."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from clozeline.errors import ClozelineError
from clozeline.params import where_set

Error = TypeVar("Error", bound=ClozelineError)
_NAME = re.compile(r"`([a-z]\w*(?:\.\w+)*)`")


def renamed(error: Error, name_of: Callable[[str], str | None], where: str = "") -> Error:
    """`error` with another name for each that stands in it between back quotes.

    Args:
        name_of: what a name is called here; None: it stays as it is.
        where: the place that the error's advice names after the last key.
    """

    def told(text: str) -> str:
        return _NAME.sub(lambda found: f"`{name_of(found[1]) or found[1]}`", text)

    changed = [found.end() for found in _NAME.finditer(error.do) if name_of(found[1])]
    end = changed[-1] if changed else 0
    return type(error)(
        told(error.problem),
        given=told(error.given) if isinstance(error.given, str) else error.given,
        expected=told(error.expected),
        do=told(error.do[:end]) + (where if changed else "") + told(error.do[end:]),
    )


def in_params(error: Error, path: Path, place: str, section: BaseModel) -> Error:
    """`error` in keys of `path`, a params.yaml; `section` is what stands there at `place`."""

    def key_of(name: str) -> str | None:
        return where_set(path, f"{place}.{name}") if _has(section, name) else None

    return renamed(error, key_of, "" if path.name in error.do else f" in {path.name}")


def _has(section: object, name: str) -> bool:
    """Whether it has such a field; of a part that is null, any."""
    for part in name.split("."):
        if not isinstance(section, BaseModel):
            return section is None
        if part not in type(section).model_fields:
            return False
        section = getattr(section, part)
    return True
