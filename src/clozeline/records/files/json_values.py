"""JSON from real files, in which strings may hold lone surrogates (which have no UTF-8)."""

import json
import re
from typing import Any

import orjson

_HALF = re.compile("[\ud800-\udfff]")
_IN_ITS_PLACE = "?"


def parsed(text: str, *, keeps_halves: bool = False) -> Any:
    """Parse a JSON value. A lone surrogate, left by cutting a text inside an emoji, becomes a question mark, unless
    `keeps_halves`.

    Raises:
        ValueError: not JSON, or nested too deeply.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # The standard library accepts what orjson refuses but real files hold: NaN and lone surrogates.
        value = _leniently(text)
        return value if keeps_halves else whole(value)


def _leniently(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def whole(value: Any) -> Any:
    """Return a JSON value with a question mark for each lone surrogate."""
    if isinstance(value, str):
        return _HALF.sub(_IN_ITS_PLACE, value)
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    if isinstance(value, dict):
        return {whole(name): whole(inner) for name, inner in value.items()}
    return value
