"""Tables of requirements in Markdown: `| P1 | requirement | its tests |`, read for tests/house."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[1]
_ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+) \| (.+) \|$")


@dataclass(frozen=True)
class Requirement:
    tests: tuple[str, ...]
    """`file`, or `file::test`."""
    reason: str
    """Text of the last column apart from the tests."""


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
