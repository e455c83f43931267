"""Translation of names in errors: from the fields that a room was given to the names that the caller knows."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from pydantic import BaseModel

from clozeline.errors import ClozelineError
from clozeline.params import where_set

Error = TypeVar("Error", bound=ClozelineError)
_NAME = re.compile(r"`([a-z]\w*(?:\.\w+)*)(: [^`]*)?`")
"""Pattern of a key in back quotes, alone or with its value."""
_ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "algorithm": "tokenize.algorithm",
        "existing": "tokenize.existing",
        "vocab_size": "tokenize.vocab_size",
        "family": "pretrain.model.family",
        "max_position_embeddings": "pretrain.model.max_position_embeddings",
        "objective": "pretrain.objective",
        "models": "export.models",
        "opset": "export.opset",
    }
)
"""Keys that rooms advise to change although they belong to another stage's section."""


def renamed(
    error: Error,
    name_of: Callable[[str], str | None],
    where: str = "",
    advised: Callable[[str], str | None] | None = None,
) -> Error:
    """Return `error` with other names for those in back quotes.

    Args:
        name_of: returns the new name; None keeps the old one.
        where: place that the error's advice names after the last key.
        advised: like `name_of`, for the advice; None: the same function.
    """
    advised = advised or name_of
    changed = [found.end() for found in _NAME.finditer(error.do) if advised(found[1])]
    end = changed[-1] if changed else 0
    return type(error)(
        _renamed(error.problem, name_of),
        given=_renamed(error.given, name_of) if isinstance(error.given, str) else error.given,
        expected=_renamed(error.expected, name_of),
        do=_renamed(error.do[:end], advised) + (where if changed else "") + _renamed(error.do[end:], advised),
    )


def in_params(error: Error, path: Path, place: str, section: BaseModel, called: str = "") -> Error:
    """Return `error` with its field names replaced by keys of the params.yaml `path`; `section` is the value at
    `place`. `called`: name of the params for the caller; empty: that of the file.
    """
    key_of = _keys_of(path, place, section)
    where = "" if path.name in error.do else f" in {called or path.name}"
    return renamed(error, key_of, where, lambda name: key_of(name) or _ELSEWHERE.get(name))


def with_keys(text: str, path: Path, place: str, section: BaseModel) -> str:
    """Return `text` with the keys of `path` in place of the fields that it names, like `in_params`."""
    key_of = _keys_of(path, place, section)
    return _renamed(text, lambda name: key_of(name) or _ELSEWHERE.get(name))


def _renamed(text: str, name_of: Callable[[str], str | None]) -> str:
    return _NAME.sub(lambda found: f"`{name_of(found[1]) or found[1]}{found[2] or ''}`", text)


def _keys_of(path: Path, place: str, section: BaseModel) -> Callable[[str], str | None]:
    """Return a function that maps a field to its key in `path`.

    The field belongs to the section, or to its only subsection with such a field, because some rooms get only a
    subsection.
    """
    parts = {name: part for name, part in section if isinstance(part, BaseModel)}

    def key_of(name: str) -> str | None:
        inside = [part for part, fields in parts.items() if _has(fields, name)]
        if _has(section, name):
            return where_set(path, f"{place}.{name}")
        return where_set(path, f"{place}.{inside[0]}.{name}") if len(inside) == 1 else None

    return key_of


def _has(section: object, name: str) -> bool:
    """Return whether the section has such a field; a part that is null counts as having any."""
    for part in name.split("."):
        if not isinstance(section, BaseModel):
            return section is None
        if part not in type(section).model_fields:
            return False
        section = getattr(section, part)
    return True
