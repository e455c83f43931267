"""INT8 graphs: which nodes change, what the numbers are, and that a tied weight survives.

K inputs and N outputs of a linear layer, T rows, V vocabulary, H hidden.
"""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from clozeline.exporting.graph import op_counts, write_graph
from clozeline.exporting.quantization import Quantized, Scheme, quantize, symmetric

DEFAULT = Scheme(per_channel=True, reduce_range=True, embeddings=True)
RANDOM = np.random.default_rng(0)
WEIGHT_KN = RANDOM.normal(size=(24, 16)).astype(np.float32)
TABLE_VH = RANDOM.normal(size=(40, 24)).astype(np.float32)
ACTIVATION_TK = RANDOM.normal(size=(5, 24)).astype(np.float32)


def graph_of(nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray], **constants: np.ndarray) -> onnx.ModelProto:
    """A graph from `feeds` (rows of any number) to its tensor `y`."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [None, *value.shape[1:]])
        for name, value in feeds.items()
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"])]
    graph = helper.make_graph(nodes, "test", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def linear() -> onnx.ModelProto:
    return graph_of([helper.make_node("MatMul", ["x", "W"], ["y"])], {"x": ACTIVATION_TK}, W=WEIGHT_KN)


def tied() -> onnx.ModelProto:
    """An embedding whose table is the vocabulary head too."""
    nodes = [
        helper.make_node("Gather", ["E", "ids"], ["h"]),
        helper.make_node("Transpose", ["E"], ["E_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "E_t"], ["y"]),
    ]
    return graph_of(nodes, {"ids": np.arange(5)}, E=TABLE_VH)


def answer(model: onnx.ModelProto, feeds: dict[str, np.ndarray], config: dict[str, str] | None = None) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    for key, value in (config or {}).items():
        options.add_session_config_entry(key, value)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["y"], feeds)[0]


def tensors(quantized: Quantized) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.model.graph.initializer}


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("reduce_range", [True, False])
def test_the_arithmetic_is_that_of_onnxruntime(tmp_path: Path, per_channel: bool, reduce_range: bool) -> None:
    onnx.save(linear(), tmp_path / "fp32.onnx")
    quantize_dynamic(
        tmp_path / "fp32.onnx",
        tmp_path / "int8.onnx",
        per_channel=per_channel,
        reduce_range=reduce_range,
        weight_type=QuantType.QInt8,
    )
    theirs = answer(onnx.load(tmp_path / "int8.onnx"), {"x": ACTIVATION_TK})
    ours = answer(quantize(linear(), Scheme(per_channel, reduce_range, embeddings=True)).model, {"x": ACTIVATION_TK})
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_int8_is_near_fp32_but_not_fp32() -> None:
    exact = ACTIVATION_TK @ WEIGHT_KN
    error = np.abs(answer(quantize(linear(), DEFAULT).model, {"x": ACTIVATION_TK}) - exact).max()
    assert 0 < error < 0.03 * np.abs(exact).max()


def test_a_tied_table_is_stored_once_in_8_bits_and_serves_both_ends() -> None:
    quantized = quantize(tied(), DEFAULT)
    matrices = [value for value in tensors(quantized).values() if value.ndim == 2]
    assert [(matrix.dtype, matrix.shape) for matrix in matrices] == [(np.int8, TABLE_VH.shape)]
    ids = np.array([3, 0, 39])
    exact = TABLE_VH[ids] @ TABLE_VH.T
    np.testing.assert_allclose(answer(quantized.model, {"ids": ids}), exact, atol=0.04 * np.abs(exact).max())
    assert (quantized.num_matmuls, quantized.num_embeddings) == (1, 1)


def test_without_quantized_embeddings_the_table_stays_exact() -> None:
    quantized = quantize(tied(), Scheme(per_channel=True, reduce_range=True, embeddings=False))
    assert quantized.num_embeddings == 0
    np.testing.assert_array_equal(tensors(quantized)["E"], TABLE_VH)


def test_an_untied_table_uses_all_8_bits_of_each_row() -> None:
    rows = TABLE_VH * np.arange(1, 41, dtype=np.float32)[:, None]
    model = graph_of([helper.make_node("Gather", ["E", "ids"], ["y"])], {"ids": np.arange(5)}, E=rows)
    quantized = quantize(model, DEFAULT)
    integers = next(value for value in tensors(quantized).values() if value.dtype == np.int8)
    assert (np.abs(integers).max(axis=1) == 127).all()
    ids = np.arange(40)
    error_V = np.abs(answer(quantized.model, {"ids": ids}) - rows).max(axis=1)
    assert (error_V <= np.abs(rows).max(axis=1) / 254 * 1.001).all()


def test_products_of_activations_and_gemm_are_left_alone() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["x_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "x_t"], ["scores"]),
        helper.make_node("MatMul", ["scores", "x"], ["mixed"]),
        helper.make_node("Gemm", ["mixed", "W"], ["y"]),
    ]
    quantized = quantize(graph_of(nodes, {"x": ACTIVATION_TK}, W=WEIGHT_KN), DEFAULT)
    assert op_counts(quantized.model) == {"Transpose": 1, "MatMul": 2, "Gemm": 1}


def test_an_activation_read_by_two_layers_is_quantized_once() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["a"]),
        helper.make_node("MatMul", ["x", "U"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    counts = op_counts(quantize(graph_of(nodes, {"x": ACTIVATION_TK}, W=WEIGHT_KN, U=-WEIGHT_KN), DEFAULT).model)
    assert (counts["DynamicQuantizeLinear"], counts["MatMulInteger"]) == (1, 2)


def test_onnxruntime_runs_a_transposed_weight_as_one_kernel(tmp_path: Path) -> None:
    model = graph_of(
        [helper.make_node("Transpose", ["W"], ["W_t"], perm=[1, 0]), helper.make_node("MatMul", ["x", "W_t"], ["y"])],
        {"x": ACTIVATION_TK},
        W=np.ascontiguousarray(WEIGHT_KN.T),
    )
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    content = quantize(model, DEFAULT).model.SerializeToString()
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    assert list(op_counts(onnx.load(tmp_path / "optimized.onnx"))) == ["DynamicQuantizeMatMul"]


def test_reduced_range_gives_the_same_bits_on_processors_that_saturate() -> None:
    """`x64quantprecision` makes ONNX Runtime widen products: with 7-bit weights there is nothing to widen."""
    extreme = {"x": np.full((4, 24), 9, dtype=np.float32)}
    extreme["x"][0, 0] = 0
    model = graph_of([helper.make_node("MatMul", ["x", "W"], ["y"])], extreme, W=np.ones((24, 16), dtype=np.float32))
    quantized = quantize(model, DEFAULT).model
    precise = answer(quantized, extreme, {"session.x64quantprecision": "1"})
    np.testing.assert_array_equal(answer(quantized, extreme), precise)


@pytest.mark.parametrize("limit", [64, 127])
def test_the_largest_weight_of_each_column_is_the_limit(limit: int) -> None:
    integers, scale_N = symmetric(WEIGHT_KN, 1, limit)
    assert (np.abs(integers.astype(int)).max(axis=0) == limit).all()
    np.testing.assert_allclose(integers * scale_N, WEIGHT_KN, atol=scale_N.max() / 2 * 1.001)


def test_a_column_of_zeros_stays_zeros() -> None:
    integers, scale_N = symmetric(np.zeros((3, 2), dtype=np.float32), 1, 64)
    assert not integers.any()
    assert np.isfinite(scale_N).all()


def test_no_rows_are_no_error() -> None:
    """A batch without masks asks the vocabulary head nothing."""
    assert answer(quantize(linear(), DEFAULT).model, {"x": np.zeros((0, 24), np.float32)}).shape == (0, 16)


def test_the_given_graph_is_not_changed_and_the_result_is_valid(tmp_path: Path) -> None:
    model = tied()
    before = model.SerializeToString(deterministic=True)
    write_graph(quantize(model, DEFAULT).model, tmp_path / "int8.onnx")
    assert model.SerializeToString(deterministic=True) == before
