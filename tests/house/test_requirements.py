"""Each row of tests/pitfalls.md and tests/reliability.md names its tests, or says why it has none.

A row is `| P1 | requirement | its tests |`."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
_ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+) \| (.+) \|$")


@dataclass(frozen=True)
class Requirement:
    tests: tuple[str, ...]  # `file`, or `file::test`
    reason: str  # text of the last column apart from the tests


def requirements(name: str) -> dict[str, Requirement]:
    """The rows of the table in `tests/<name>`, by number."""
    lines = (PROJECT / "tests" / name).read_text(encoding="utf-8").splitlines()
    matches = [match for match in map(_ROW.match, lines) if match]
    return {match.group(1): _requirement(match.group(3)) for match in matches}


def missing(tests: tuple[str, ...]) -> list[str]:
    """Return the entries of `tests` that do not exist."""
    return [test for test in tests if not _exists(*test.partition("::")[::2])]


def _requirement(cell: str) -> Requirement:
    reason = re.sub(r"`[^`]+`|<br>", "", cell).strip()
    return Requirement(tuple(re.findall(r"`([^`]+)`", cell)), reason)


def _exists(path: str, name: str) -> bool:
    if not (PROJECT / path).is_file():
        return False
    tree = ast.parse((PROJECT / path).read_text(encoding="utf-8"))
    return not name or name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


# Pitfalls for which a failure of transformers was measured or found by reading.
MEASURED = ["P1", "P3", "P4", "P5", "P8", "P9", "P21", "P28", "P29", "P32", "P33"]
PITFALLS = [*(f"P{number}" for number in range(1, 41)), *(f"S{number}" for number in range(1, 29))]
REQUIREMENTS = [f"R{number}" for number in range(1, 36)]


def test_every_pitfall_has_a_row() -> None:
    assert list(requirements("pitfalls.md")) == PITFALLS


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_the_tests_named_for_a_pitfall_exist(pitfall: str) -> None:
    named = requirements("pitfalls.md")[pitfall].tests
    assert named
    assert all("::" in test for test in named), "a file alone does not name a test"
    assert missing(named) == []


@pytest.mark.parametrize("pitfall", MEASURED)
def test_each_measured_failure_of_transformers_has_a_comparing_test(pitfall: str) -> None:
    assert any("/test_beside_theirs.py::" in test for test in requirements("pitfalls.md")[pitfall].tests)


def test_every_requirement_has_a_row() -> None:
    assert list(requirements("reliability.md")) == REQUIREMENTS


@pytest.mark.parametrize("number", REQUIREMENTS)
def test_each_requirement_names_existing_tests_or_a_reason(number: str) -> None:
    requirement = requirements("reliability.md")[number]
    assert requirement.tests or requirement.reason
    assert missing(requirement.tests) == []


def test_the_tests_named_for_a_threat_exist() -> None:
    page = (PROJECT / "docs" / "security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[^`]+::[^`]+)`", page)
    assert len(named) > 15
    assert missing(tuple(named)) == []
