"""Claim: every JSON value that is read can be written again, and invalid JSON is a ValueError."""

import json

import pytest

from clozeline.records.reading.streams import parsed


@pytest.mark.parametrize("half", ["\\ud83d", "\\uDE00", "\\udfff"])
def test_a_lone_surrogate_becomes_a_question_mark(half: str) -> None:
    value = parsed(f'{{"a{half}": ["{half}b", {{"c": "d{half} e"}}], "n": 1}}')
    assert value == {"a?": ["?b", {"c": "d? e"}], "n": 1}
    json.dumps(value, ensure_ascii=False).encode()


def test_valid_json_with_surrogate_pairs_parses_as_in_the_standard_library() -> None:
    text = '{"emoji": "\\ud83d\\ude00 \U0001f600", "d": "\\u00e4", "m": "\\\\ud83d", "n": [1.5, null, true]}'
    assert parsed(text) == json.loads(text)


@pytest.mark.parametrize("text", ["{", "", "[" * 200_000])
def test_invalid_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="nested too deeply" if len(text) > 1 else "."):
        parsed(text)
