"""tests/pitfalls.md says of forty pitfalls which test holds that each is avoided; here it is held to that."""

import ast
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (P\d+) \| (.+) \| (.+) \|$")


def rows() -> dict[str, list[str]]:
    """Pitfall → the tests named for it."""
    lines = (PROJECT / "tests" / "pitfalls.md").read_text(encoding="utf-8").splitlines()
    matches = [match for match in map(ROW.match, lines) if match]
    return {match.group(1): re.findall(r"`([^`]+)`", match.group(3)) for match in matches}


def test_every_pitfall_has_a_row() -> None:
    assert list(rows()) == [f"P{number}" for number in range(1, 41)]


@pytest.mark.parametrize("pitfall", [f"P{number}" for number in range(1, 41)])
def test_the_tests_named_for_a_pitfall_exist(pitfall: str) -> None:
    named = rows()[pitfall]
    assert named
    for test in named:
        path, _, name = test.partition("::")
        tree = ast.parse((PROJECT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not name or name in functions, f"{pitfall}: {path} has no {name}"
