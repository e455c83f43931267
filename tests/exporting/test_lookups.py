"""Nodes that look up rows of a table are found; those that take columns or read another tensor are not."""

import numpy as np
from onnx import helper, numpy_helper

from clozeline.exporting.graph import lookups

CONSTANTS = {"zero": np.array([0]), "one": np.array([1])}


def test_gathers_and_slices_of_rows_count_as_lookups() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Gather", ["table", "ids"], ["columns"], axis=1),
        helper.make_node("Gather", ["other", "ids"], ["rows of another"]),
        helper.make_node("Slice", ["table", "zero", "length", "zero"], ["first rows"]),
        helper.make_node("Slice", ["table", "zero", "length", "one"], ["first columns"]),
        helper.make_node("Slice", ["table", "zero", "length", "axes"], ["of axes that nobody knows"]),
        helper.make_node("Transpose", ["table"], ["turned"]),
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    graph = helper.make_graph(nodes, "test", [], [], constants)
    assert lookups(graph, {"table"}) == {"rows", "first rows"}
