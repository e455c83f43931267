"""The exporter's graphs are rewritten to a few forms."""

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper, numpy_helper

from clozeline.exporting.graph import make_plain, name_activations, op_counts, strip, weight_of

WEIGHT_NK = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)


def graph(**attributes: object) -> ModelProto:
    """Return a graph of two linear layers that share a weight, as the exporter writes layers on two axes."""
    gemm = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1} | attributes
    nodes = [
        helper.make_node("Gemm", ["x", "encoder.dense.weight", "bias"], ["first"], name="node_linear", **gemm),
        helper.make_node("Gemm", ["x", "encoder.dense.weight"], ["second"], name="node_linear_1", **gemm),
        helper.make_node("Add", ["first", "second"], ["y"], name="node_add"),
    ]
    made = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])],
        [
            numpy_helper.from_array(WEIGHT_NK, "encoder.dense.weight"),
            numpy_helper.from_array(np.ones(4, np.float32), "bias"),
        ],
        value_info=[helper.make_tensor_value_info("first", TensorProto.FLOAT, ["rows", 4])],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def answer(model: ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given: np.ndarray = session.run(["y"], {"x": X})[0]
    return given


def test_a_linear_layer_is_a_product_with_its_transposed_weight_plus_a_bias() -> None:
    model = graph()
    make_plain(model)
    assert op_counts(model) == {"Transpose": 2, "MatMul": 2, "Add": 2}
    np.testing.assert_allclose(answer(model), 2 * X @ WEIGHT_NK.T + 1, rtol=1e-5)


def test_products_are_named_after_their_weights_the_second_with_a_number() -> None:
    model = graph()
    make_plain(model)
    assert weight_of(model) == dict.fromkeys(("encoder.dense", "encoder.dense/2"), "encoder.dense.weight")


def test_an_activation_is_named_after_the_first_product_that_reads_it() -> None:
    model = graph()
    make_plain(model)
    relu = helper.make_node("Relu", ["x"], ["positive"])
    for node in model.graph.node:
        node.input[:] = ["positive" if name == "x" else name for name in node.input]
    model.graph.node.insert(0, relu)
    name_activations(model)
    assert [node.input[0] for node in model.graph.node if node.op_type == "MatMul"] == ["encoder.dense/input"] * 2
    np.testing.assert_allclose(answer(model), 2 * np.maximum(X, 0) @ WEIGHT_NK.T + 1, rtol=1e-5)


def test_a_scaled_gemm_stays_unchanged() -> None:
    model = graph(alpha=0.5)
    make_plain(model)
    assert op_counts(model) == {"Gemm": 2, "Add": 1}


def test_source_file_names_and_intermediate_shapes_are_stripped() -> None:
    model = graph()
    for part in (model, model.graph, model.graph.node[0], model.graph.initializer[0], model.graph.input[0]):
        entry = part.metadata_props.add()
        entry.key, entry.value = "pkg.torch.onnx.stack_trace", "/home/somebody/model.py"
    strip(model)
    assert b"somebody" not in model.SerializeToString()
    assert not model.graph.value_info
