"""Nodes of a graph that look up rows of a table."""

from collections.abc import Container

from onnx import GraphProto, NodeProto, TensorProto, numpy_helper


def lookups(graph: GraphProto, tables: Container[str]) -> frozenset[str]:
    """Return the names of the tensors that are looked up in `tables`: rows by index, or a slice of rows (positions)."""
    first = {tensor.name for tensor in graph.initializer if _is_zero(tensor)}
    read = [node for node in graph.node if node.input and node.input[0] in tables]
    return frozenset(node.output[0] for node in read if _selects_rows(node, first))


def _selects_rows(node: NodeProto, first: Container[str]) -> bool:
    if node.op_type == "Gather":
        return not any(attribute.i for attribute in node.attribute if attribute.name == "axis")
    return node.op_type == "Slice" and len(node.input) > 3 and node.input[3] in first


def _is_zero(tensor: TensorProto) -> bool:
    return tensor.data_type == TensorProto.INT64 and not numpy_helper.to_array(tensor).any()
