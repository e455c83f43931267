"""The size of the house, as `make size` prints it; tests/house/test_size.py holds each figure to a limit."""

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ruamel.yaml import YAML

from tests.house.test_rooms import FLOORS, PACKAGE, PROJECT, SOURCES, nodes_of

TESTS = sorted((PROJECT / "tests").rglob("*.py"))
SMALL_FILE_LINES = 60
TINY_FUNCTION_LINES = 3
OTHER_LANGUAGES = {".yaml", ".yml", ".html", ".css", ".js", ".sh"}
# Tokens that are no code.
_LAYOUT = {
    *(tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.COMMENT, tokenize.ENCODING, tokenize.ENDMARKER),
}
_MAY_HAVE_A_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class FileSize:
    """What a Python file holds. A line with code and a comment is a line of code."""

    code_lines: int
    comment_lines: int  # lines with nothing but a comment or a docstring
    import_lines: int


@cache
def size_of(file: Path) -> FileSize:
    """Return the size of a Python file. A string under a field is code here, though it documents the field."""
    text = file.read_text(encoding="utf-8")
    nodes = nodes_of(file) if file.is_relative_to(PACKAGE) else nodes_of.__wrapped__(file)  # others are read once
    docstrings = _lines_of(_docstrings(nodes))
    strings = _lines_of(node for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)) - docstrings
    written = {number: line.lstrip() for number, line in enumerate(text.split("\n"), 1) if line.strip()}
    comments = {number for number, line in written.items() if line.startswith("#")} - strings
    code = ({*written} | strings) - comments - docstrings
    imports = _lines_of(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    return FileSize(len(code), len(comments | docstrings), len(imports))


def num_tokens(file: Path) -> int:
    """Return the tokens of the code, without line ends and indentation; counting them takes longer than parsing."""
    text = file.read_text(encoding="utf-8")
    places = {(node.lineno, node.col_offset) for node in _docstrings(nodes_of(file))}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in _LAYOUT and token.start not in places for token in tokens)


def _docstrings(nodes: Iterable[ast.AST]) -> list[ast.stmt]:
    documented = (node for node in nodes if isinstance(node, _MAY_HAVE_A_DOCSTRING))
    return [node.body[0] for node in documented if ast.get_docstring(node, clean=False) is not None]


def _lines_of(nodes: Iterable[ast.stmt | ast.expr]) -> set[int]:
    return {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def code_lines_of(files: Iterable[Path]) -> int:
    return sum(size_of(file).code_lines for file in files)


def tiny_functions(nodes: list[ast.AST]) -> list[str]:
    """Return the private functions and methods of at most 3 lines whose names the file uses once."""
    names = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    names.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
    return [
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("_") and not node.name.startswith("__") and names[node.name] == 1
        if (node.end_lineno or node.lineno) - node.lineno < TINY_FUNCTION_LINES
    ]


def repeated_class_names(files: Iterable[Path]) -> list[str]:
    """Return the public names that top-level classes of several files have."""
    counts = Counter(
        node.name
        for file in files
        for node in ast.iter_child_nodes(nodes_of(file)[0])
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, num_files in counts.items() if num_files > 1)


def num_leaves(value: object) -> int:
    """Return how many single values a YAML document holds; an empty list or mapping holds none."""
    if isinstance(value, dict):
        return sum(map(num_leaves, value.values()))
    return sum(map(num_leaves, value)) if isinstance(value, list) else 1


def lines_in_other_languages() -> int:
    """Return the lines, without blank ones, of the package's own YAML, templates, JavaScript and shell; links aside."""
    files = [file for file in PACKAGE.rglob("*") if file.suffix in OTHER_LANGUAGES and not file.is_symlink()]
    return sum(bool(line.strip()) for file in files for line in file.read_text(encoding="utf-8").splitlines())


def rows_of_where_to_add() -> int:
    """Return the rows of the table in docs/architecture.md that tells where something is added."""
    page = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("\n| … | Files |\n")[2].partition("\n\n")[0]
    return len(table.splitlines()) - 1


@cache
def figures() -> dict[str, float]:
    """Return each figure of the house by its name."""
    sizes = [size_of(file) for file in SOURCES]
    code_lines = code_lines_of(SOURCES)
    comment_lines = sum(size.comment_lines for size in sizes)
    params = YAML(typ="safe").load(PROJECT / "params.yaml")
    return {
        "rooms": len(list(PACKAGE.glob("*/__init__.py"))),
        "floors": len(FLOORS),
        "files": len(SOURCES),
        "code lines": code_lines,
        "code tokens": sum(map(num_tokens, SOURCES)),
        "lines in other languages": lines_in_other_languages(),
        "comments and docstrings, % of the lines": 100 * comment_lines / (code_lines + comment_lines),
        "imports, % of the code lines": 100 * sum(size.import_lines for size in sizes) / code_lines,
        "files below 60 code lines": sum(
            size_of(file).code_lines < SMALL_FILE_LINES for file in SOURCES if file.name != "__init__.py"
        ),
        "tiny private functions used once": sum(len(tiny_functions(nodes_of(file))) for file in SOURCES),
        "leaves of params.yaml": num_leaves(params),
        "code lines of the tests": code_lines_of(TESTS),
        "files of the tests": len(TESTS),
        "rows of `Where do I add`": rows_of_where_to_add(),
        "class names in two files": len(repeated_class_names(SOURCES)),
    }


def rooms() -> dict[str, list[Path]]:
    """Return the files of each room; `.` is what lies beside the rooms."""
    found: dict[str, list[Path]] = {}
    for file in SOURCES:
        inside = file.relative_to(PROJECT if file.parts[-2] == "flows" else PACKAGE)
        found.setdefault(inside.parts[0] if len(inside.parts) > 1 else ".", []).append(file)
    return found


def private_lines(files: Iterable[Path]) -> int:
    """Return the lines of top-level definitions whose names begin with an underscore."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tops = (node for file in files for node in ast.iter_child_nodes(nodes_of(file)[0]))
    private = (node for node in tops if isinstance(node, kinds) and node.name.startswith("_"))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in private)


def table() -> str:
    """Return the figures of the house, then the rooms: what `make size` prints."""
    lines = [f"{name:42}{figure:12,.{0 if isinstance(figure, int) else 1}f}" for name, figure in figures().items()]
    lines += ["", f"{'room':20}{'files':>8}{'code lines':>12}{'private lines':>15}"]
    for room, files in sorted(rooms().items()):
        lines.append(f"{room:20}{len(files):8}{code_lines_of(files):12,}{private_lines(files):15,}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
