"""Claim: no shape of a record is typed twice."""

import ast
import itertools
from collections.abc import Iterator

from tests.house.test_rooms import PACKAGE, SOURCES, nodes_of

# So many equal fields, by name and type, that make up most of the smaller class are one shape.
NUM_SHARED = 5
SHARE = 0.75
# Two classes of one shape → why both exist.
TWICE = {
    ("serving/http/status.py:ModelCard", "serving/loading.py:Identity"): "clients get a described schema",
}


def shapes() -> Iterator[tuple[str, frozenset[tuple[str, str]]]]:
    """Yield each class with the names and types of its own fields."""
    for file in SOURCES:
        for node in nodes_of(file):
            if isinstance(node, ast.ClassDef) and file.is_relative_to(PACKAGE):
                fields = frozenset(
                    (line.target.id, ast.unparse(line.annotation))
                    for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                )
                yield f"{file.relative_to(PACKAGE).as_posix()}:{node.name}", fields


def test_no_shape_is_typed_twice_but_for_the_listed_ones() -> None:
    large = [(name, fields) for name, fields in shapes() if len(fields) >= NUM_SHARED]
    twice = {
        tuple(sorted((one, other)))
        for (one, fields), (other, other_fields) in itertools.combinations(large, 2)
        if len(fields & other_fields) >= max(NUM_SHARED, SHARE * min(len(fields), len(other_fields)))
    }
    assert twice == set(TWICE)
