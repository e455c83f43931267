"""JSON from real files, in which strings may hold lone surrogates (which have no UTF-8)."""

import json
import re
from typing import Any

import orjson

_HALF = re.compile("[\ud800-\udfff]")
_IN_ITS_PLACE = "?"


def parsed(text: str) -> Any:
    """Parse a JSON value. A lone surrogate, left by cutting a text inside an emoji, becomes a question mark.

    Raises:
        ValueError: not JSON, or nested too deeply.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # The standard library accepts what orjson refuses but real files hold: NaN and lone surrogates.
        return _whole(_leniently(text))


def _leniently(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub(_IN_ITS_PLACE, value)
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    if isinstance(value, dict):
        return {_whole(name): _whole(inner) for name, inner in value.items()}
    return value
