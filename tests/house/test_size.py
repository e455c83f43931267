"""The house may only become smaller: what it holds today is the limit of each figure."""

from pathlib import Path

from tests.house import size
from tests.house.size import figures
from tests.house.test_rooms import FLOORS, SOURCES, nodes_of

# Figure → its limit. Whoever makes a figure smaller lowers its limit; whoever adds pays by removing.
AT_MOST = {
    "rooms": 25,
    "floors": 8,
    "files": 303,
    "code lines": 40_443,
    "code tokens": 406_558,
    "lines in other languages": 1_932,
    "imports, % of the code lines": 9.9,
    "files below 60 code lines": 20,
    "tiny private functions used once": 84,
    "leaves of params.yaml": 217,
    "code lines of the tests": 37_963,
    "files of the tests": 327,
    "rows of `Where do I add`": 30,
    "class names in two files": 0,
}
AT_LEAST = {"comments and docstrings, % of the lines": 20.0}
SOURCE = '''
"""What the file is for."""

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

    def shown(self) -> str:
        return """

        """ + self._once() + _twice() + _twice()


def _twice() -> str:
    return "b"
'''


def test_the_house_does_not_grow_and_shorter_code_does_not_explain_less() -> None:
    found = figures()
    assert set(found) == {*AT_MOST, *AT_LEAST}
    assert {name: found[name] for name, limit in AT_MOST.items() if found[name] > limit} == {}
    assert {name: found[name] for name, limit in AT_LEAST.items() if found[name] < limit} == {}


def test_lines_functions_classes_and_tokens_are_counted_by_what_they_hold(tmp_path: Path) -> None:
    source, other = tmp_path / "source.py", tmp_path / "other.py"
    source.write_text(SOURCE, encoding="utf-8")
    assert size.size_of(source) == size.FileSize(code_lines=14, comment_lines=4, import_lines=3)
    assert size.tiny_functions(nodes_of(source)) == ["_once"]
    assert size.private_lines([source]) == 2
    other.write_text("class Public: ...\nclass _Private: ...\nclass Other: ...\n", encoding="utf-8")
    assert size.repeated_class_names([source, other]) == ["Public"]
    assert size.num_leaves({"a": {"b": 1, "c": None}, "d": [1, {"e": 2}], "f": [], "g": {}}) == 4
    plain, told = tmp_path / "plain.py", tmp_path / "told.py"
    plain.write_text("def a(b):\n    return b\n", encoding="utf-8")
    told.write_text('# Why\n\ndef a(b):  # how\n    """What."""\n    return b\n', encoding="utf-8")
    assert size.num_tokens(plain) == size.num_tokens(told) == 8


def test_the_table_names_each_figure_and_each_room() -> None:
    assert size.rows_of_where_to_add() > 10
    printed = size.table()
    listed = {line.split()[0] for line in printed.partition("private lines")[2].splitlines() if line}
    assert all(name in printed for name in figures())
    assert listed == {room for floor in FLOORS for room in floor} | {"."}
    assert sum(len(files) for files in size.rooms().values()) == len(SOURCES)
