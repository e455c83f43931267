"""Claim: if a field is missing, the message lists the fields present and suggests the one likely meant."""

import pytest

from clozeline.records.reading.files import check_fields, json_records, nearest
from clozeline.system.errors import DataError

KNOBS = {"text_field": "text", "label_field": "label"}


@pytest.mark.parametrize(
    ("name", "present", "meant"),
    [
        ("text", ("id", "texts"), "texts"),
        ("text", ("id", "Text"), "Text"),
        ("text", ("id", "tweet_text"), "tweet_text"),
        ("sentence_text", ("id", "text"), "text"),
        ("text", ("id", "te"), "te"),
        ("text", ("x", "body"), None),
        ("label", ("a", "b"), None),
        ("text", (), None),
    ],
)
def test_the_likely_intended_field_is_suggested(name: str, present: tuple[str, ...], meant: str | None) -> None:
    assert nearest(name, present) == meant


def test_a_missing_field_is_reported_with_the_given_fields_and_the_likely_one() -> None:
    with pytest.raises(DataError) as caught:
        check_fields(("body_text", "label"), KNOBS, "a.csv, line 1")
    assert caught.value.problem == "a.csv, line 1: no field `text`"
    assert caught.value.given == "fields: body_text, label"
    assert caught.value.do == "set `text_field` to body_text"


def test_a_field_named_by_another_knob_is_not_suggested() -> None:
    both = {"first_field": "sentence1", "second_field": "sentence2"}
    with pytest.raises(DataError, match="set `second_field` to one of these fields"):
        check_fields(("sentence1", "score"), both, "a.csv")


def test_renaming_the_field_is_advised_only_if_no_earlier_record_has_it() -> None:
    lines = ['{"text": "a", "label": "b"}', "", '{"texts": "a", "label": "b"}']
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: no field `text`") as caught:
        list(json_records(lines, "a.jsonl", KNOBS))
    assert "earlier records have this field" in caught.value.do
    with pytest.raises(DataError, match=r"set `text_field` to texts$"):
        list(json_records(lines[1:], "a.jsonl", KNOBS))
