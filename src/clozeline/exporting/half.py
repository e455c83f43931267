"""Weights stored in 16 bits: half the file. A graph for CPUs all the same: once it is open, they are floats again."""

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

_LARGEST = float(np.finfo(np.float16).max)
_STORED = "{}/half"


def with_half_weights(model: ModelProto) -> ModelProto:
    """A copy of `model` whose matrices and tables are float16; ONNX Runtime makes floats of them when it opens it.

    What float16 cannot hold stays as it is.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    widened = []
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) < 2:
            continue
        values = numpy_helper.to_array(tensor)
        if np.abs(values).max(initial=0.0) <= _LARGEST:
            name = tensor.name
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), _STORED.format(name)))
            widened.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    nodes = [*widened, *graph.node]
    graph.ClearField("node")
    graph.node.extend(nodes)
    return copy
