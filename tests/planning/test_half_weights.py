"""Weights in 16 bits: the same answers up to their rounding, half the bytes, and nothing lost that does not fit."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from clozeline.planning.serving import with_half_weights

WEIGHT_KN = np.random.default_rng(0).normal(size=(24, 16)).astype(np.float32)
BIAS_N = np.linspace(-1, 1, 16, dtype=np.float32)
ROWS_TK = np.random.default_rng(1).normal(size=(3, 24)).astype(np.float32)


def graph(weight_KN: np.ndarray) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "W"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    made = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 16])],
        [numpy_helper.from_array(weight_KN, "W"), numpy_helper.from_array(BIAS_N, "b")],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def answer(model: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": ROWS_TK})[0]


def test_matrices_take_half_the_bytes_and_compute_with_their_rounded_values() -> None:
    model = graph(WEIGHT_KN)
    half = with_half_weights(model)
    stored = [numpy_helper.to_array(tensor) for tensor in half.graph.initializer]
    assert [(tensor.dtype, tensor.shape) for tensor in stored] == [(np.float16, (24, 16)), (np.float32, (16,))]
    exact = ROWS_TK @ WEIGHT_KN.astype(np.float16).astype(np.float32) + BIAS_N
    np.testing.assert_allclose(answer(half), exact, atol=1e-5)
    assert np.abs(answer(half) - answer(model)).max() > 0
    assert model.graph.initializer[0].data_type == TensorProto.FLOAT


def test_a_matrix_beyond_the_range_of_float16_stays_float32() -> None:
    model = graph(WEIGHT_KN * 1e6)
    np.testing.assert_array_equal(answer(with_half_weights(model)), answer(model))
