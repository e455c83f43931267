"""The house may only become smaller: what it holds today is the limit of each figure."""

from pathlib import Path

import pytest

from tests.house import size
from tests.house.size import figures
from tests.house.test_rooms import FLOORS, SOURCES, nodes_of

# Figure → its limit. Whoever makes a figure smaller lowers its limit; whoever adds pays by removing.
AT_MOST = {
    "rooms": 25,
    "floors": 8,
    "files": 314,
    "code lines": 40_788,
    "code tokens": 407_410,
    "lines in other languages": 1_936,
    "imports, % of the code lines": 9.9,
    "files below 60 code lines": 22,
    "tiny private functions used once": 90,
    "leaves of params.yaml": 217,
    "code lines of the tests": 45_909,
    "files of the tests": 389,
    "rows of `Where do I add`": 30,
    "class names in two files": 0,
}
AT_LEAST = {"comments and docstrings, % of the lines": 18.0}
SOURCE = '''
"""What the file is for."""

import os
from pathlib import (
    Path,
)

# A comment.
WHERE = "a"  # beside code
"""A string under a name is code."""


class Public:
    """A docstring
    of two lines."""

    def _once(self) -> str:
        return WHERE

    def _twice(self) -> str:
        return f"{self._once()}"

    def shown(self) -> str:
        """Return it."""
        return """

        """ + self._twice() + self._twice()


def _long(a: int) -> int:
    b = a + 1
    c = b + 1
    return c


class _Private:
    pass


_long(1)
'''


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path / "source.py"


def test_each_figure_has_a_limit() -> None:
    assert set(figures()) == {*AT_MOST, *AT_LEAST}


@pytest.mark.parametrize("name", AT_MOST)
def test_the_house_does_not_grow(name: str) -> None:
    assert figures()[name] <= AT_MOST[name]


@pytest.mark.parametrize("name", AT_LEAST)
def test_shorter_code_does_not_explain_less(name: str) -> None:
    assert figures()[name] >= AT_LEAST[name]


def test_lines_functions_and_classes_are_counted_by_what_they_hold(source: Path, tmp_path: Path) -> None:
    assert size.size_of(source) == size.FileSize(code_lines=22, comment_lines=5, import_lines=4)
    assert size.tiny_functions(nodes_of(source)) == ["_once"]
    assert size.private_lines([source]) == 6
    other = tmp_path / "other.py"
    other.write_text("class Public: ...\nclass _Private: ...\nclass Other: ...\n", encoding="utf-8")
    assert size.repeated_class_names([source, other]) == ["Public"]
    assert size.num_leaves({"a": {"b": 1, "c": None}, "d": [1, {"e": 2}], "f": [], "g": {}}) == 4


@pytest.mark.parametrize(
    "text", ["def a(b):\n    return b\n", '# Why\n\ndef a(b):  # how\n    """What."""\n    return b\n']
)
def test_comments_docstrings_and_layout_are_no_tokens(tmp_path: Path, text: str) -> None:
    (tmp_path / "source.py").write_text(text, encoding="utf-8")
    assert size.num_tokens(tmp_path / "source.py") == 8


def test_the_table_names_each_figure_and_each_room() -> None:
    assert size.rows_of_where_to_add() > 10
    printed = size.table()
    listed = {line.split()[0] for line in printed.partition("private lines")[2].splitlines() if line}
    assert all(name in printed for name in figures())
    assert listed == {room for floor in FLOORS for room in floor} | {"."}
    assert sum(len(files) for files in size.rooms().values()) == len(SOURCES)
