"""CPU graph with weights stored in float16, which halves the file. ONNX Runtime casts them to float32 on loading."""

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

_LARGEST = float(np.finfo(np.float16).max)
_STORED = "{}/half"


def with_half_weights(model: ModelProto) -> ModelProto:
    """Return a copy of `model` whose matrices and tables are stored as float16 and cast to float32.

    A tensor with a value that float16 cannot hold stays in float32.
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
