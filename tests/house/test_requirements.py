"""Each row of tests/pitfalls.md and tests/reliability.md names its tests, or says why it has none; docs/security.md
names those of each threat.

A row is `| P1 | requirement | its tests |`."""

import ast
import re
from functools import cache

import pytest

from tests.conftest import PROJECT

_ROW = re.compile(r"^\| ([A-Z]\d+) \| .+ \| (.+) \|$", re.MULTILINE)
_NAMED = re.compile("`([^`]+)`")
# Pitfalls for which a failure of transformers was measured or found by reading.
MEASURED = ["P1", "P3", "P4", "P5", "P8", "P9", "P21", "P28", "P29", "P32", "P33"]


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((PROJECT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def missing(tests: list[str]) -> list[str]:
    """Return the entries of `tests`, each a `file` or `file::test`, that do not exist."""
    parts = [(test, *test.partition("::")[::2]) for test in tests]
    return [
        test for test, path, name in parts if not (PROJECT / path).is_file() or (name and name not in names_in(path))
    ]


@pytest.mark.parametrize(
    ("page", "numbers"),
    [
        ("pitfalls.md", [*(f"P{number}" for number in range(1, 41)), *(f"S{number}" for number in range(1, 29))]),
        ("reliability.md", [f"R{number}" for number in range(1, 36)]),
    ],
)
def test_every_requirement_has_a_row_that_names_existing_tests_or_a_reason(page: str, numbers: list[str]) -> None:
    rows = dict(_ROW.findall((PROJECT / "tests" / page).read_text(encoding="utf-8")))
    assert list(rows) == numbers
    tests = {number: _NAMED.findall(cell) for number, cell in rows.items()}
    assert {number: lost for number, named in tests.items() if (lost := missing(named))} == {}
    if page == "pitfalls.md":
        assert all(tests.values())
        assert all("::" in test for named in tests.values() for test in named), "a file alone does not name a test"
        assert [number for number in MEASURED if "/test_beside_theirs.py::" not in " ".join(tests[number])] == []
    assert all(cell.strip() for cell in rows.values())


def test_the_tests_named_for_a_threat_exist() -> None:
    page = (PROJECT / "docs" / "security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[^`]+::[^`]+)`", page)
    assert len(named) > 15
    assert missing(named) == []
