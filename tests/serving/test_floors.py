"""A request passes through the rooms of serving/ once, from top to bottom, and only one file imports uvicorn."""

import ast
import re
from pathlib import Path

import pytest

SERVING = Path(__file__).parents[2] / "src" / "clozeline" / "serving"
FLOORS = ("edge", "protocols", "models", "scheduling", "observe")
"""Rooms of serving/, from the top floor down."""
FILES = sorted(SERVING.rglob("*.py"))


def imported_by(file: Path) -> set[str]:
    """Return the full names of the imported modules and of the objects imported from them."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def parts_of_serving(file: Path) -> set[str]:
    """Return the rooms and loose files of serving/ that `file` imports."""
    found = (re.match(r"clozeline\.serving\.(\w+)", name) for name in imported_by(file))
    return {match[1] for match in found if match} & {path.stem for path in SERVING.iterdir()}


def test_every_folder_has_a_floor_or_holds_pages() -> None:
    folders = {path.parent.name for path in SERVING.glob("*/__init__.py")}
    assert folders == {*FLOORS, "playground"}


@pytest.mark.parametrize("room", FLOORS)
def test_a_room_imports_only_rooms_below_it_and_the_record_of_errors(room: str) -> None:
    below = {*FLOORS[FLOORS.index(room) :], "errors"}
    for file in (SERVING / room).rglob("*.py"):
        assert parts_of_serving(file) <= below, file


def test_the_record_of_errors_imports_no_room() -> None:
    assert parts_of_serving(SERVING / "errors.py") == set()


def test_only_the_adapter_imports_uvicorn_and_no_module_fastapi() -> None:
    importers = {
        (package, file.name)
        for file in FILES
        for package in ("uvicorn", "fastapi")
        if any(name == package or name.startswith(f"{package}.") for name in imported_by(file))
    }
    assert importers == {("uvicorn", "uvicorn_adapter.py")}


def private_attributes_of_others(file: Path) -> set[str]:
    return {
        ast.unparse(node)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and re.match(r"_[a-z]", node.attr)
        and ast.unparse(node.value) not in {"self", "cls"}
    }


def test_no_file_uses_private_attributes_of_another() -> None:
    assert {file: names for file in FILES if (names := private_attributes_of_others(file))} == {}
    assert [(file, name) for file in FILES for name in imported_by(file) if "._" in name] == []
