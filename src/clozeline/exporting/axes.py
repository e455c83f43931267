"""Shapes of a graph's tensors, by shape inference."""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

_LARGEST_SIZE = 64
"""Largest number of elements of a constant that may be a shape; a larger constant is a weight."""
Axes = tuple[int | str | None, ...]
"""Axes of a tensor: a size, a name that stands for the same size in the whole graph, or None if unknown."""


def inferred_axes(model: ModelProto) -> Mapping[str, Axes]:
    """Return the axes of each tensor except the weights, by name."""
    inferred = onnx.shape_inference.infer_shapes(outline(model), data_prop=True).graph
    values = [*inferred.value_info, *inferred.input, *inferred.output]
    return {value.name: tuple(_size(axis) for axis in value.type.tensor_type.shape.dim) for value in values}


def outline(model: ModelProto) -> ModelProto:
    """Return a copy without weights: shape inference and memory have no room for a second copy of a large model."""
    graph = model.graph
    tensors = [
        tensor
        if np.prod(tensor.dims) <= _LARGEST_SIZE
        else TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        for tensor in graph.initializer
    ]
    outline = helper.make_graph(graph.node, graph.name, graph.input, graph.output, tensors, value_info=graph.value_info)
    return helper.make_model(outline, opset_imports=model.opset_import, ir_version=model.ir_version)


def _size(axis: "onnx.TensorShapeProto.Dimension") -> int | str | None:
    if axis.HasField("dim_value"):
        return int(axis.dim_value)
    return str(axis.dim_param) if axis.dim_param else None
