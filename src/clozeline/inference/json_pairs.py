"""Pairs of texts for clients that send plain strings: JSON, such as `{"question": "…", "context": "…"}`."""

import json
from collections.abc import Sequence

from clozeline.errors import DataError


def pairs_in(texts: Sequence[str], first: str, second: str) -> list[tuple[str, str]]:
    """Return the values of the keys `first` and `second` of each text, a JSON object.

    Raises:
        DataError: a text is not a JSON object with both.
    """
    return [_pair(number, text, first, second) for number, text in enumerate(texts)]


def _pair(number: int, text: str, first: str, second: str) -> tuple[str, str]:
    try:
        asked = json.loads(text)
        return str(asked[first]), str(asked[second])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(
            f"text {number} is not a JSON object with `{first}` and `{second}`",
            given=text[:60],
            expected=f'JSON such as {{"{first}": "…", "{second}": "…"}}',
            do=f"send each {first} and its {second} as one JSON object in a string",
        ) from error
