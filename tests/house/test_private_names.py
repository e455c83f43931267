"""Claim: of other packages, our code uses only the private names listed here, each in the file that needs it."""

import ast
import sys
from collections.abc import Iterator
from functools import cache

from tests.house.test_rooms import PROJECT, SOURCES, nodes_of

# File → private name.
IN_USE = {
    ("src/clozeline/cli/verbs.py", "typer._click.core"),  # typer shows no other name of the errors it prints
    ("src/clozeline/cli/verbs.py", "typer._click.exceptions"),
    ("src/clozeline/encoder/checkpoints.py", "_supports_sdpa"),
    ("src/clozeline/exporting/to_onnx.py", "_config"),  # where the base class keeps its configuration
    ("src/clozeline/exporting/forms.py", "_check"),  # torch's guide to its exporter says to call it
    ("src/clozeline/orchestration/prefect_adapter.py", "_apprise_client"),
    ("src/clozeline/planning/costs.py", "_attn_implementation"),
    ("src/clozeline/tokenizing/tokenizer/vocabulary/opening.py", "_special_tokens_map"),
}
# Python documents these.
OF_NAMED_TUPLES = {"_fields", "_replace"}


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") and part != "_" for part in name.split("."))


@cache
def own_names() -> frozenset[str]:
    """Return the names that our code defines or assigns, as an attribute or not."""
    names = set[str]()
    for node in (node for file in SOURCES for node in nodes_of(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return frozenset(names)


def private_names_of_others(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the names that a file uses of others; `packages` are those that it imports whole."""
    imported = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    own, ours = {"clozeline", *sys.stdlib_module_names}, own_names() | OF_NAMED_TUPLES
    packages = {(one.asname or one.name).partition(".")[0] for one in imported if one.name.partition(".")[0] not in own}
    yield from (alias.name for alias in imported)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("clozeline"):
            yield from [node.module or ""] if is_private(node.module or "") else (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner in packages or not (owner in sys.stdlib_module_names or node.attr in ours):
                yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"getattr", "hasattr"}:
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value not in own_names():
                yield str(name.value)


def test_the_private_names_used_from_other_packages_match_the_list() -> None:
    found = {
        (str(file.relative_to(PROJECT)), name)
        for file in SOURCES
        for name in private_names_of_others(nodes_of(file))
        if is_private(name)
    }
    assert found == IN_USE


def test_no_private_name_is_used_where_a_request_is_answered() -> None:
    rooms = tuple(f"src/clozeline/{room}/" for room in ("serving", "inference", "choosing", "artifacts"))
    assert [(file, name) for file, name in IN_USE if file.startswith(rooms)] == []
