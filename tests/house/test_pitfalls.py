"""tests/pitfalls.md names tests for each of forty pitfalls and for each stumble of beginners; these tests check both
tables.
"""

import pytest

from tests.requirement_table import missing, requirements

MEASURED = ["P1", "P3", "P4", "P5", "P8", "P9", "P21", "P28", "P29", "P32", "P33"]
"""Pitfalls for which a failure of transformers was measured or found by reading."""
NUMBERS = [f"P{number}" for number in range(1, 41)]
STUMBLES = [f"S{number}" for number in range(1, 29)]


def test_every_pitfall_has_a_row() -> None:
    assert list(requirements("pitfalls.md")) == NUMBERS + STUMBLES


@pytest.mark.parametrize("pitfall", NUMBERS + STUMBLES)
def test_the_tests_named_for_a_pitfall_exist(pitfall: str) -> None:
    named = requirements("pitfalls.md")[pitfall].tests
    assert named
    assert all("::" in test for test in named), "a file alone does not name a test"
    assert missing(named) == []


@pytest.mark.parametrize("pitfall", MEASURED)
def test_each_measured_failure_of_transformers_has_a_comparing_test(pitfall: str) -> None:
    assert any("/test_beside_theirs.py::" in test for test in requirements("pitfalls.md")[pitfall].tests)
