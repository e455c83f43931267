"""A figure passes its limit or not; both are written with the verdict, and read again."""

import math
from dataclasses import asdict

import pytest
from pydantic import TypeAdapter

from clozeline.records.limits import Limit, MustBe

LIMIT = TypeAdapter(Limit)


@pytest.mark.parametrize(
    ("must_be", "of_less", "of_equal", "of_more"),
    [("at least", 0, 1, 1), ("at most", 1, 1, 0), ("above", 0, 0, 1), ("below", 1, 0, 0)],
)
def test_a_figure_passes_its_limit(must_be: MustBe, of_less: int, of_equal: int, of_more: int) -> None:
    assert [Limit("x", given, must_be, 2.0).is_passed for given in (1.0, 2.0, 3.0)] == [of_less, of_equal, of_more]
    assert not Limit("x", math.nan, must_be, 2.0).is_passed


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (Limit.at_least("agreement", 0.91234, 0.96), "agreement is 0.9123, at least 0.96: NO"),
        (Limit.at_most("documents", 1200.0, 2000.0, note="1,000 before"), "documents is 1,200 (1,000 before), at most"),
        (Limit("lead", 1.0, "above", 0.0), "lead is 1.0000, above 0: yes"),
    ],
    ids=["a share", "a count with a note", "a whole number that is no count"],
)
def test_a_limit_is_told_in_one_line(limit: Limit, words: str) -> None:
    assert str(limit).startswith(words)


def test_a_limit_is_written_with_its_verdict_and_without_its_note() -> None:
    limit = Limit.at_most("saturation", math.nan, 0.0, note="shown only")
    keys = b'{"name":"saturation","given":"NaN","must_be":"at most","limit":0.0,"is_passed":false}'
    assert LIMIT.dump_json(limit) == keys
    read = LIMIT.validate_json(keys)
    assert math.isnan(read.given)
    plain = {"given": 0.0, "note": ""}
    assert asdict(read) | plain == asdict(limit) | plain
