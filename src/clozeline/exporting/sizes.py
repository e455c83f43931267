"""Sizes that a graph computes anew for every batch though they are known: made constants, or computed once.

An exporter writes what the model's code says: the width of an attention head is asked of each tensor, and the length of
the texts in every layer. What is 1 % of a long text's time is 10 % of a short one's; and ONNX Runtime makes the scale
of attention part of the product only if it is a constant.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.graph import drop_unread

_LARGEST_SIZE = 64
"""Numbers of a constant that can be a shape: what is larger is a weight."""
Axes = tuple[int | str | None, ...]
"""Of a tensor: each a number, a name that stands for one and the same number in the whole graph, or not known."""


def settle_sizes(model: ModelProto) -> None:
    """Change `model`, which computes the same as before."""
    graph = model.graph
    known = _Known(inferred_axes(model), _constants(graph), {node.output[0]: node for node in graph.node})
    once: dict[int | str, str] = {}
    for node in list(graph.node):
        sizes = known.sizes(node)
        if sizes is None:
            continue
        if all(isinstance(size, int) for size in sizes):
            _replace(node, np.array(sizes if node.op_type == "Slice" else sizes[0], dtype=np.int64))
        elif node.op_type == "Gather" and (first := once.setdefault(sizes[0], node.output[0])) != node.output[0]:
            node.CopyFrom(helper.make_node("Identity", [first], list(node.output), name=node.name))
    drop_unread(graph)


@dataclass(frozen=True)
class _Known:
    axes: Mapping[str, Axes]
    constants: Mapping[str, list[int]]
    made_by: Mapping[str, NodeProto]

    def sizes(self, node: NodeProto) -> list[int | str] | None:
        """The sizes that `node` takes out of a shape: one, if it is a Gather, or those of a Slice; None: not known."""
        if node.op_type not in ("Gather", "Slice") or (shape := self._shape(node.input[0])) is None:
            return None
        given = [self.constants.get(name) for name in node.input[1:]]
        if any(values is None or len(values) != 1 for values in given):
            return None
        numbers = [values[0] for values in given if values]
        chosen = shape[numbers[0] : numbers[0] + 1 or None] if node.op_type == "Gather" else _sliced(shape, numbers)
        found = [size for size in chosen if size is not None]
        return found if found and len(found) == len(chosen) else None

    def _shape(self, name: str) -> Axes | None:
        node = self.made_by.get(name)
        if node is None or node.op_type != "Shape" or node.attribute:
            return None
        return self.axes.get(node.input[0])


def _sliced(shape: Axes, numbers: list[int]) -> Axes:
    """`numbers`: first, last, and then an axis, which can be none but the only one, and a step."""
    return shape[numbers[0] : numbers[1] : numbers[3] if len(numbers) > 3 else 1]


def _replace(node: NodeProto, value: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
    constant = numpy_helper.from_array(value)
    node.CopyFrom(helper.make_node("Constant", [], list(node.output), name=node.name, value=constant))


def inferred_axes(model: ModelProto) -> dict[str, Axes]:
    """What shape inference knows of each tensor but the weights."""
    inferred = onnx.shape_inference.infer_shapes(outline(model), data_prop=True).graph
    values = [*inferred.value_info, *inferred.input]
    return {value.name: tuple(_size(axis) for axis in value.type.tensor_type.shape.dim) for value in values}


def outline(model: ModelProto) -> ModelProto:
    """A copy without weights: those of a large model are too many for shape inference, and to be there twice."""
    graph = model.graph
    tensors = [
        tensor
        if np.prod(tensor.dims) <= _LARGEST_SIZE
        else TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        for tensor in graph.initializer
    ]
    outline = helper.make_graph(graph.node, graph.name, graph.input, graph.output, tensors)
    return helper.make_model(outline, opset_imports=model.opset_import, ir_version=model.ir_version)


def _size(axis: "onnx.TensorShapeProto.Dimension") -> int | str | None:
    if axis.HasField("dim_value"):
        return int(axis.dim_value)
    return str(axis.dim_param) if axis.dim_param else None


def _constants(graph: GraphProto) -> dict[str, list[int]]:
    """Small constants of integers, by the name of the tensor."""
    return {name: np.atleast_1d(value).tolist() for name, value in small_tensors(graph) if value.dtype == np.int64}


def small_tensors(graph: GraphProto) -> "Iterator[tuple[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]]":
    """Constants of `graph` by name, initializers first, but for those that are too large to be a size or an axis."""
    for tensor in graph.initializer:
        if np.prod(tensor.dims) <= _LARGEST_SIZE:
            yield tensor.name, numpy_helper.to_array(tensor)
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            yield node.output[0], numpy_helper.to_array(node.attribute[0].t)
