"""The folder listing is the architecture: it decides which room may import which, and how things are named."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from clozeline.params.project import Params

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "clozeline"
SOURCES = [*sorted(PACKAGE.rglob("*.py")), *sorted((PROJECT / "flows").rglob("*.py"))]
# Rooms by floor, from the top down: each room imports only from the floors below it.
FLOORS = (
    ("cli",),
    ("flows", "lab"),
    ("orchestration", "planning", "stages"),
    ("evaluation", "pretraining", "reporting", "serving"),
    ("exporting", "language", "registry", "tasks"),
    ("corpus", "encoder", "inference", "tokenizing", "tracking", "training", "versions"),
    ("cluster", "params", "records"),
    ("system",),
)
# Rooms whose messages name keys of params.yaml, and the room that reads it.
DOORS = {"cli", "flows", "lab", "orchestration", "params", "reporting", "serving", "stages"}
# Files with lines for params.yaml: what the Python API says if no model is there.
LINES_OF_PARAMS = {PACKAGE / "registry/sources.py"}
BELOW_THE_DOORS = [
    file
    for file in sorted(PACKAGE.glob("*/**/*.py"))
    if file.relative_to(PACKAGE).parts[0] not in DOORS and file not in LINES_OF_PARAMS
]
A_KEY = re.compile(rf"`(?:{'|'.join(Params.model_fields)})\.[a-z]|\bin params\.yaml|^params\.yaml: ")


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def imported_by(file: Path) -> Iterator[str]:
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers_of(*names: str) -> set[str]:
    """Return the files, as paths in the project, that import any of `names` or something from it."""
    return {
        str(file.relative_to(PROJECT))
        for file in SOURCES
        if any(module == name or module.startswith(f"{name}.") for module in imported_by(file) for name in names)
    }


def room_of(module: str) -> str:
    return module.split(".")[1]


@cache
def imports_between_rooms() -> frozenset[tuple[str, str]]:
    """Return all pairs of a room and another room that it imports, lazily or not."""
    rooms = {file: "flows" if file.parts[-2] == "flows" else file.relative_to(PACKAGE).parts[0] for file in SOURCES}
    return frozenset(
        (room, room_of(module))
        for file, room in rooms.items()
        for module in imported_by(file)
        if file.parent != PACKAGE and module.startswith("clozeline.") and room_of(module) in floor_of()
        if room_of(module) != room
    )


@cache
def floor_of() -> dict[str, int]:
    """Return room → floor, counted from the ground up."""
    return {room: floor for floor, rooms in enumerate(reversed(FLOORS)) for room in rooms}


def test_every_room_is_on_one_floor_and_imports_only_from_lower_ones() -> None:
    folders = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    files = {file.stem for file in PACKAGE.glob("[!_]*.py")}
    assert sorted(room for rooms in FLOORS for room in rooms) == sorted(folders | files)
    up = {(room, other) for room, other in imports_between_rooms() if floor_of()[other] >= floor_of()[room]}
    assert up == set()
    # Stages import neither each other nor what calls them, which lies in stages/calling.
    assert "stages" not in {Path(file).parent.name for file in importers_of("clozeline.stages")}


@pytest.mark.parametrize(
    ("packages", "places"),
    [
        (("dvc", "dvc_data", "dvc_objects", "scmrepo"), ("versions/",)),
        (("mlflow",), ("registry/", "tracking/")),
        (("onnxruntime",), ("inference/",)),
        (("prefect",), ("flows/", "orchestration/")),
        (("ray",), ("cluster/",)),
        (("sqlite3",), ("tracking/addresses.py", "tracking/mlflow.py")),
        (
            ("transformers",),
            (*("encoder/", "exporting/", "lab/", "language/", "pretraining/"), "tokenizing/tokenizer/"),
        ),
    ],
)
def test_a_package_is_imported_only_in_its_rooms(packages: tuple[str, ...], places: tuple[str, ...]) -> None:
    files = {file.removeprefix("src/clozeline/") for file in importers_of(*packages)}
    assert {place for file in files for place in places if file.startswith(place)} == set(places)
    assert [file for file in files if not file.startswith(places)] == []


def test_the_tables_of_mlflow_are_opened_read_only() -> None:
    """Two files open the database without MLflow: one to check its pages, one to ask which version is live."""
    for file in importers_of("sqlite3"):
        nodes = nodes_of(PROJECT / file)
        calls = [ast.unparse(node) for node in nodes if isinstance(node, ast.Call)]
        (call,) = (call for call in calls if call.startswith("sqlite3.connect("))
        assert "uri=True" in call
        assert [node for node in nodes if isinstance(node, ast.JoinedStr) and "?mode=ro" in ast.unparse(node)], file


def literals_of(file: Path) -> Iterator[ast.Constant]:
    """Yield the strings of a file without its docstrings; each part of an f-string is a string of its own."""
    docstrings = {id(node.value) for node in nodes_of(file) if isinstance(node, ast.Expr)}
    for node in nodes_of(file):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node


def messages_in(file: Path) -> list[str]:
    """Return the texts of a file without its docstrings, which may say where a field comes from."""
    return [str(literal.value) for literal in literals_of(file)]


def test_messages_below_the_command_line_name_no_section_of_params() -> None:
    found = [(file, text) for file in BELOW_THE_DOORS for text in messages_in(file) if A_KEY.search(text)]
    assert found == []


def test_importing_clozeline_prints_nothing_and_loads_no_heavy_package(tmp_path: Path) -> None:
    heavy = "{'torch', 'transformers', 'mlflow', 'onnxruntime', 'prefect', 'dvc', 'numpy'}"
    code = f"import clozeline, sys; print(sorted({heavy} & set(sys.modules)), end='')"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, env={}
    )
    assert result.stdout == "[]"
    assert result.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_no_file_names_a_package_registry_host_or_a_path_of_one_machine() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True)
    files = [PROJECT / name for name in filter(None, tracked.stdout.split("\0"))]
    told = [b"pypi" + b".org", b"registry" + b".npmjs", b"/wo" + b"rk/main", b"/wo" + b"rk/shared", b"/opt/" + b"pypi"]
    contents = {file: file.read_bytes() for file in files if not file.is_symlink()}
    assert [file for file, content in contents.items() if any(name in content for name in told)] == []
