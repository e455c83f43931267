"""A vector is folded as a bias only if it is added to a product that nothing else reads."""

import numpy as np
import onnx
import pytest
from onnx import helper

from clozeline.exporting.graph import Bias, biases, op_counts
from clozeline.exporting.quantization import PRODUCT, quantize
from tests.exporting.test_activations import BIAS_N, RANGES
from tests.exporting.test_quantization import ACTIVATION_TK, DEFAULT, WEIGHT_KN, answer, graph_of

PRODUCT_OF_X = helper.make_node("MatMul", ["x", "W"], ["p"])


def graph(*nodes: onnx.NodeProto, **constants: np.ndarray) -> onnx.ModelProto:
    return graph_of([PRODUCT_OF_X, *nodes], {"x": ACTIVATION_TK}, W=WEIGHT_KN, **constants)


@pytest.mark.parametrize("inputs", [["p", "bias"], ["bias", "p"]])
def test_a_bias_is_found_on_either_side_of_the_sum(inputs: list[str]) -> None:
    model = graph(helper.make_node("Add", inputs, ["y"]), bias=BIAS_N)
    assert biases(model.graph) == {"p": Bias("bias", 16, "y")}


def test_a_product_with_another_reader_keeps_its_separate_sum() -> None:
    twice = [helper.make_node("Add", ["p", "bias"], ["s"]), helper.make_node("Mul", ["s", "p"], ["y"])]
    model = graph(*twice, bias=BIAS_N)
    assert biases(model.graph) == {}
    given_out = graph(helper.make_node("Add", ["p", "bias"], ["y"]), bias=BIAS_N)
    given_out.graph.output.append(helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, ["rows", 16]))
    assert biases(given_out.graph) == {}


@pytest.mark.parametrize("other", [np.ones((1, 16), np.float32), np.array(1, np.float32)])
def test_tensors_of_other_shapes_are_not_taken_for_a_bias(other: np.ndarray) -> None:
    assert biases(graph(helper.make_node("Add", ["p", "other"], ["y"]), other=other).graph) == {}


def test_a_one_element_vector_stays_a_separate_sum() -> None:
    """The operator needs one number for each output."""
    model = graph(helper.make_node("Add", ["p", "one"], ["y"]), one=np.array([7], np.float32))
    quantized = quantize(model, DEFAULT, ranges=RANGES).model
    assert op_counts(quantized) == {"QuantizeLinear": 1, PRODUCT: 1, "Add": 1}
    exact = ACTIVATION_TK @ WEIGHT_KN
    np.testing.assert_allclose(answer(quantized, {"x": ACTIVATION_TK}) - 7, exact, atol=0.03 * np.abs(exact).max())
