"""Claim: an error is one statement where it is raised, and says what to do."""

import ast
from collections.abc import Iterator

from clozeline.system import errors
from clozeline.system.errors import ClozelineError
from tests.house.test_rooms import SOURCES, nodes_of

# Constructions that say in a part of its own what was expected. Lower it when one of them says so in its problem.
MOST_WITH_EXPECTED = 194
OWN = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ClozelineError)}


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def error_names() -> set[str]:
    """Return the classes of `clozeline.system.errors`, and those that the code derives from them."""
    bases = {
        node.name: {name_of(base) for base in node.bases}
        for file in SOURCES
        for node in nodes_of(file)
        if isinstance(node, ast.ClassDef)
    }
    names = set(OWN)
    while more := {name for name, of in bases.items() if of & names} - names:
        names |= more
    return names


def constructions() -> Iterator[tuple[str, ast.Call, set[str]]]:
    """Yield the place of each construction of an error, the call, and the names of its keywords."""
    names = error_names()
    for file in SOURCES:
        for node in nodes_of(file):
            if isinstance(node, ast.Call) and name_of(node.func) in names:
                yield f"{file}:{node.lineno}", node, {str(keyword.arg) for keyword in node.keywords}


def test_each_error_says_what_to_do() -> None:
    found = list(constructions())
    assert len(found) > 300, "the search finds them"
    assert [place for place, _, keywords in found if "do" not in keywords] == []


def test_no_error_is_put_together_in_several_statements() -> None:
    """It is raised, returned or handed over where it is made, not kept in a variable."""
    kept = {
        id(node.value): f"{file}:{node.lineno}"
        for file in SOURCES
        for node in nodes_of(file)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr)
    }
    assert [kept[id(call)] for _, call, _ in constructions() if id(call) in kept] == []


def test_fewer_and_fewer_errors_have_a_part_for_what_was_expected() -> None:
    assert sum("expected" in keywords for *_, keywords in constructions()) <= MOST_WITH_EXPECTED
