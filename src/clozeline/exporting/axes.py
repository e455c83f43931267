"""What shape inference knows of a graph's tensors."""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

_LARGEST_SIZE = 64
"""Numbers of a constant that can be a shape: what is larger is a weight."""
Axes = tuple[int | str | None, ...]
"""Of a tensor: each a number, a name that stands for one and the same number in the whole graph, or not known."""


def inferred_axes(model: ModelProto) -> Mapping[str, Axes]:
    """Those of each tensor but the weights."""
    inferred = onnx.shape_inference.infer_shapes(outline(model), data_prop=True).graph
    values = [*inferred.value_info, *inferred.input, *inferred.output]
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
    outline = helper.make_graph(graph.node, graph.name, graph.input, graph.output, tensors, value_info=graph.value_info)
    return helper.make_model(outline, opset_imports=model.opset_import, ir_version=model.ir_version)


def _size(axis: "onnx.TensorShapeProto.Dimension") -> int | str | None:
    if axis.HasField("dim_value"):
        return int(axis.dim_value)
    return str(axis.dim_param) if axis.dim_param else None
