"""Sizes that are known before a text comes: constants, or computed once; and nothing else is changed.

B texts, L tokens, H hidden.
"""

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.graph import op_counts
from clozeline.exporting.sizes import settle_sizes

HIDDEN = 6
NUMBERS = {"zero": 0, "one": 1, "last": -1, "first": [0], "second": [1], "end": [-1], "far": [2**62]}


def graph_of(*nodes: tuple[str, Sequence[str], str]) -> onnx.ModelProto:
    """From `x_BLH`, whose last axis is known, to `y`."""
    constants = [numpy_helper.from_array(np.array(value, dtype=np.int64), name) for name, value in NUMBERS.items()]
    graph = helper.make_graph(
        [_node(*node) for node in nodes],
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", HIDDEN])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _node(op_type: str, inputs: Sequence[str], output: str) -> NodeProto:
    return helper.make_node(op_type, inputs, [output])


def answer(model: onnx.ModelProto, num_texts: int, length: int) -> object:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.zeros((num_texts, length, HIDDEN), np.float32)})[0].tolist()


def settled(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    settle_sizes(copy)
    for shape in ((1, 2), (3, 5)):
        assert answer(copy, *shape) == answer(model, *shape)
    return copy


def test_a_known_width_is_a_constant_and_its_shape_is_not_asked() -> None:
    gathered = settled(graph_of(("Shape", ["x"], "s"), ("Gather", ["s", "last"], "y")))
    sliced = settled(graph_of(("Shape", ["x"], "s"), ("Slice", ["s", "end", "far"], "y")))
    assert op_counts(gathered) == op_counts(sliced) == {"Constant": 1}


def test_the_length_of_the_texts_is_asked_once_though_every_layer_asks() -> None:
    model = graph_of(
        ("Shape", ["x"], "s"),
        ("Gather", ["s", "one"], "length"),
        ("Relu", ["x"], "layer"),
        ("Shape", ["layer"], "t"),
        ("Gather", ["t", "one"], "again"),
        ("Add", ["length", "again"], "y"),
    )
    assert op_counts(settled(model))["Shape"] == 1


def test_different_sizes_and_what_is_not_known_stay() -> None:
    model = graph_of(
        ("Shape", ["x"], "s"),
        ("Gather", ["s", "zero"], "num_texts"),
        ("NonZero", ["x"], "found"),
        ("Shape", ["found"], "t"),
        ("Gather", ["t", "one"], "num_found"),
        ("Slice", ["s", "first", "second"], "begin"),
        ("Add", ["num_texts", "num_found"], "sum"),
        ("Add", ["sum", "begin"], "y"),
    )
    assert op_counts(settled(model)) == op_counts(model)


def test_a_slice_with_a_size_that_is_not_known_stays() -> None:
    model = graph_of(("Shape", ["x"], "s"), ("Slice", ["s", "second", "far"], "y"))
    model.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    assert op_counts(settled(model)) == {"Shape": 1, "Slice": 1}


def test_a_constant_that_only_looks_like_a_place_in_a_shape_is_let_be() -> None:
    model = graph_of(("Cast", ["x"], "y"))
    model.graph.node[0].attribute.append(helper.make_attribute("to", TensorProto.INT64))
    assert op_counts(settled(model)) == {"Cast": 1}
