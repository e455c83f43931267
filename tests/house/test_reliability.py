"""tests/reliability.md names a test for each of 35 requirements, or says why there is none; this checks the table."""

import pytest

from tests.requirement_table import missing, requirements

NUMBERS = [f"R{number}" for number in range(1, 36)]


def test_every_requirement_has_a_row() -> None:
    assert list(requirements("reliability.md")) == NUMBERS


@pytest.mark.parametrize("number", NUMBERS)
def test_each_requirement_names_existing_tests_or_a_reason(number: str) -> None:
    requirement = requirements("reliability.md")[number]
    assert requirement.tests or requirement.reason
    assert missing(requirement.tests) == []
