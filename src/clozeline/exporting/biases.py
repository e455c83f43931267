"""Vectors that are added to the result of one product only: an integer product can add them itself."""

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import GraphProto, NodeProto, TensorProto

from clozeline.exporting.graph import num_readers


@dataclass(frozen=True)
class Bias:
    """A constant vector [N] that an Add node adds to every row [..., N] of a product."""

    vector: str
    """Name of the constant."""
    size: int
    """N."""
    output: str
    """Name of the sum."""


def biases(graph: GraphProto) -> dict[str, Bias]:
    """Return the bias of each tensor that only an Add of a constant vector reads, by the tensor's name."""
    readers = num_readers(graph)
    sizes = {
        tensor.name: tensor.dims[0]
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 1
    }
    return {
        name: Bias(vector, sizes[vector], node.output[0])
        for node in graph.node
        if node.op_type == "Add"
        for name, vector in _inputs_in_both_orders(node)
        if vector in sizes and name not in sizes and readers[name] == 1
    }


def _inputs_in_both_orders(add: NodeProto) -> Iterator[tuple[str, str]]:
    first, second = add.input
    yield first, second
    yield second, first
