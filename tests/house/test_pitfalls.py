"""tests/pitfalls.md says of forty pitfalls which test holds that each is avoided; here it is held to that."""

import pytest

from tests.requirement_table import missing, requirements

NUMBERS = [f"P{number}" for number in range(1, 41)]


def test_every_pitfall_has_a_row() -> None:
    assert list(requirements("pitfalls.md")) == NUMBERS


@pytest.mark.parametrize("pitfall", NUMBERS)
def test_the_tests_named_for_a_pitfall_exist(pitfall: str) -> None:
    named = requirements("pitfalls.md")[pitfall].tests
    assert named
    assert missing(named) == []
