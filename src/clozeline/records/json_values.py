"""JSON as real files have it: a text may hold half of a surrogate pair, which is no character and has no UTF-8."""

import json
import re
from typing import Any

import orjson

_HALF = re.compile("[\ud800-\udfff]")
_IN_ITS_PLACE = "?"


def parsed(text: str) -> Any:
    """A value; half of a pair, as texts cut in the middle of an emoji have it, is a question mark in it.

    Raises:
        ValueError: it is no JSON, or nested too deeply to be read.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # The standard library's reader takes what orjson refuses but real files hold: NaN, half a surrogate pair.
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
