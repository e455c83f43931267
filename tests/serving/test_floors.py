"""Only one file of serving/ imports uvicorn, and none uses private attributes of another."""

import ast
import re
from pathlib import Path

SERVING = Path(__file__).parents[2] / "src" / "clozeline" / "serving"
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
