"""INT8 graphs: which nodes change, their numbers, and the survival of a tied weight; scales at run time or fixed.

K inputs and N outputs of a linear layer, T rows, V vocabulary, H hidden.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from clozeline.exporting import quantization
from clozeline.exporting.fixed_scales import Seen, range_of
from clozeline.exporting.graph import Bias, biases, op_counts, write_graph
from clozeline.exporting.quantization import ActivationRange

DEFAULT = quantization.Scheme(weights="int7", embeddings=True)
UNSIGNED = replace(DEFAULT, weights="uint8")
RANDOM = np.random.default_rng(0)
WEIGHT_KN = RANDOM.normal(size=(24, 16)).astype(np.float32)
TABLE_VH = RANDOM.normal(size=(40, 24)).astype(np.float32)
ACTIVATION_TK = RANDOM.normal(size=(5, 24)).astype(np.float32)


def seen_in(values_TK: np.ndarray) -> Seen:
    """Return the range statistics of these tokens."""
    return Seen(
        values_TK.min(axis=1),
        values_TK.max(axis=1),
        values_TK.min(axis=0, initial=0.0),
        values_TK.max(axis=0, initial=0.0),
        np.square(values_TK).sum(axis=0) / max(len(values_TK), 1),
    )


def graph_of(nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray], **constants: np.ndarray) -> onnx.ModelProto:
    """A graph from `feeds` (rows of any number) to its tensor `y`."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [None, *value.shape[1:]])
        for name, value in feeds.items()
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"])]
    graph = helper.make_graph(nodes, "test", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def linear() -> onnx.ModelProto:
    return graph_of([helper.make_node("MatMul", ["x", "W"], ["y"])], {"x": ACTIVATION_TK}, W=WEIGHT_KN)


def tied() -> onnx.ModelProto:
    """Return a graph with an embedding whose table is also the vocabulary head."""
    nodes = [
        helper.make_node("Gather", ["E", "ids"], ["h"]),
        helper.make_node("Transpose", ["E"], ["E_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "E_t"], ["y"]),
    ]
    return graph_of(nodes, {"ids": np.arange(5)}, E=TABLE_VH)


def answer(
    model: onnx.ModelProto,
    feeds: dict[str, np.ndarray],
    *,
    level: onnxruntime.GraphOptimizationLevel = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    widened: bool = False,
) -> np.ndarray:
    """The tensor `y`; `widened` has onnxruntime avoid 16-bit sums, so that nothing can saturate."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.add_session_config_entry("session.x64quantprecision", str(int(widened)))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["y"], feeds)[0]


def tensors(quantized: quantization.Quantized) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.model.graph.initializer}


@pytest.mark.parametrize(("weights", "reduce_range"), [("int7", True), ("int8", False)])
def test_weights_are_stored_as_onnxruntime_stores_them(
    tmp_path: Path, weights: quantization.Weights, reduce_range: bool
) -> None:
    onnx.save(linear(), tmp_path / "fp32.onnx")
    quantize_dynamic(
        tmp_path / "fp32.onnx",
        tmp_path / "int8.onnx",
        per_channel=True,
        reduce_range=reduce_range,
        weight_type=QuantType.QInt8,
    )
    stored = [numpy_helper.to_array(tensor) for tensor in onnx.load(tmp_path / "int8.onnx").graph.initializer]
    ours = tensors(quantization.quantize(linear(), replace(DEFAULT, weights=weights)))
    limit = 64 if reduce_range else 127
    for name in (f"W/{limit}/1", f"W/{limit}/1/scale"):
        assert any(value.shape == ours[name].shape and np.allclose(value, ours[name], atol=1e-7) for value in stored)


@pytest.mark.parametrize("scheme", [DEFAULT, UNSIGNED])
def test_int8_is_near_fp32_but_not_fp32(scheme: quantization.Scheme) -> None:
    exact = ACTIVATION_TK @ WEIGHT_KN
    error = np.abs(answer(quantization.quantize(linear(), scheme).model, {"x": ACTIVATION_TK}) - exact).max()
    assert 0 < error < 0.03 * np.abs(exact).max()


def test_an_outlier_does_not_change_the_answer_for_another_token() -> None:
    beside = np.concatenate([ACTIVATION_TK, 1000 * ACTIVATION_TK[:1]])
    quantized = quantization.quantize(linear(), DEFAULT).model
    np.testing.assert_array_equal(answer(quantized, {"x": beside})[:5], answer(quantized, {"x": ACTIVATION_TK}))


def test_fusions_of_onnxruntime_do_not_change_the_result() -> None:
    nodes = [helper.make_node("MatMul", ["x", "W"], ["p"]), helper.make_node("Add", ["p", "bias"], ["y"])]
    model = graph_of(nodes, {"x": ACTIVATION_TK}, W=WEIGHT_KN, bias=np.arange(16, dtype=np.float32))
    quantized = quantization.quantize(model, DEFAULT).model
    plain = answer(quantized, {"x": ACTIVATION_TK}, level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    np.testing.assert_allclose(answer(quantized, {"x": ACTIVATION_TK}), plain, atol=1e-5)


def test_a_tied_table_is_stored_once_in_8_bits_for_input_and_output() -> None:
    quantized = quantization.quantize(tied(), DEFAULT)
    matrices = [value for value in tensors(quantized).values() if value.ndim == 2]
    assert [(matrix.dtype, matrix.shape) for matrix in matrices] == [(np.int8, TABLE_VH.shape)]
    ids = np.array([3, 0, 39])
    exact = TABLE_VH[ids] @ TABLE_VH.T
    np.testing.assert_allclose(answer(quantized.model, {"ids": ids}), exact, atol=0.02 * np.abs(exact).max())
    assert (quantized.num_matmuls, quantized.num_embeddings) == (1, 1)


def test_without_quantized_embeddings_the_table_stays_exact() -> None:
    quantized = quantization.quantize(tied(), replace(DEFAULT, embeddings=False))
    assert quantized.num_embeddings == 0
    np.testing.assert_array_equal(tensors(quantized)["E"], TABLE_VH)


def test_an_untied_table_uses_all_8_bits_of_each_row() -> None:
    rows = TABLE_VH * np.arange(1, 41, dtype=np.float32)[:, None]
    model = graph_of([helper.make_node("Gather", ["E", "ids"], ["y"])], {"ids": np.arange(5)}, E=rows)
    quantized = quantization.quantize(model, DEFAULT)
    integers = next(value for value in tensors(quantized).values() if value.dtype == np.int8)
    assert (np.abs(integers).max(axis=1) == 127).all()
    ids = np.arange(40)
    error_V = np.abs(answer(quantized.model, {"ids": ids}) - rows).max(axis=1)
    assert (error_V <= np.abs(rows).max(axis=1) / 254 * 1.001).all()


def test_a_sliced_position_table_is_also_stored_in_8_bits() -> None:
    nodes = [helper.make_node("Slice", ["P", "zero", "length", "zero"], ["y"])]
    model = graph_of(nodes, {"length": np.array([7])}, P=TABLE_VH, zero=np.array([0]))
    quantized = quantization.quantize(model, DEFAULT)
    assert quantized.num_embeddings == 1
    assert "P" not in tensors(quantized)
    error_L = np.abs(answer(quantized.model, {"length": np.array([7])}) - TABLE_VH[:7]).max(axis=1)
    assert (error_L <= np.abs(TABLE_VH[:7]).max(axis=1) / 254 * 1.001).all()


def test_products_of_activations_and_gemm_stay_unchanged() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["x_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "x_t"], ["scores"]),
        helper.make_node("MatMul", ["scores", "x"], ["mixed"]),
        helper.make_node("Gemm", ["mixed", "W"], ["y"]),
    ]
    quantized = quantization.quantize(graph_of(nodes, {"x": ACTIVATION_TK}, W=WEIGHT_KN), DEFAULT)
    assert op_counts(quantized.model) == {"Transpose": 1, "MatMul": 2, "Gemm": 1}


def test_products_named_as_exact_are_not_quantized() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["a"], name="first"),
        helper.make_node("MatMul", ["x", "U"], ["b"], name="second"),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    model = graph_of(nodes, {"x": ACTIVATION_TK}, W=WEIGHT_KN, U=-WEIGHT_KN)
    quantized = quantization.quantize(model, DEFAULT, exact=["second"])
    assert [node.name for node in quantized.model.graph.node if node.op_type == "MatMul"] == ["second"]
    assert (quantized.num_matmuls, quantized.exact) == (1, ("second",))


def test_an_exact_output_projection_reuses_the_8_bit_embedding_table() -> None:
    """The file does not grow: it has no second copy in floats."""
    model = tied()
    (name,) = quantization.products_by_constants(model)
    quantized = quantization.quantize(model, DEFAULT, exact=[name])
    matrices = [value for value in tensors(quantized).values() if value.ndim == 2]
    assert [(matrix.dtype, matrix.shape) for matrix in matrices] == [(np.int8, TABLE_VH.shape)]
    (table,) = matrices
    scale_V = next(value for value in tensors(quantized).values() if value.shape == (len(TABLE_VH),))
    rows_VH = table * scale_V[:, None]
    ids = np.array([3, 0, 39])
    np.testing.assert_allclose(answer(quantized.model, {"ids": ids}), rows_VH[ids] @ rows_VH.T, atol=1e-4)
    assert quantized.num_matmuls == 0


def test_onnxruntime_folds_the_operations_on_weights_into_constants(tmp_path: Path) -> None:
    """A transposed weight costs nothing at run time."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    content = quantization.quantize(tied(), DEFAULT).model.SerializeToString()
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    assert not {"Transpose", "Add"} & op_counts(onnx.load(tmp_path / "optimized.onnx")).keys()


def extreme(feeds: dict[str, np.ndarray], scheme: quantization.Scheme) -> onnx.ModelProto:
    """The largest sums that integers can give: every weight and every activation at its limit."""
    model = graph_of([helper.make_node("MatMul", ["x", "W"], ["y"])], feeds, W=np.ones((24, 16), dtype=np.float32))
    return quantization.quantize(model, scheme).model


@pytest.mark.parametrize("scheme", [DEFAULT, UNSIGNED])
def test_reduced_range_and_unsigned_weights_do_not_saturate(scheme: quantization.Scheme) -> None:
    feeds = {"x": np.full((4, 24), 9, dtype=np.float32)}
    model = extreme(feeds, scheme)
    np.testing.assert_array_equal(answer(model, feeds), answer(model, feeds, widened=True))
    np.testing.assert_allclose(answer(model, feeds), 9 * 24, rtol=0.01)


def test_the_8_bit_output_projection_does_not_saturate() -> None:
    model = graph_of(list(tied().graph.node), {"ids": np.arange(5)}, E=np.ones((40, 24), dtype=np.float32))
    quantized = quantization.quantize(model, DEFAULT).model
    feeds = {"ids": np.array([3, 0])}
    np.testing.assert_array_equal(answer(quantized, feeds), answer(quantized, feeds, widened=True))
    np.testing.assert_allclose(answer(quantized, feeds), 24, rtol=0.01)


def test_unsigned_weights_have_half_the_error_of_7_bit_weights() -> None:
    feeds = {"x": np.eye(24, dtype=np.float32)}  # which is exact in 8 bits, so the error comes from the weights
    lost = {
        scheme: np.abs(answer(quantization.quantize(linear(), scheme).model, feeds) - WEIGHT_KN).mean()
        for scheme in (DEFAULT, UNSIGNED)
    }
    assert lost[UNSIGNED] < 0.55 * lost[DEFAULT]
    stored = [value for value in tensors(quantization.quantize(linear(), UNSIGNED)).values() if value.ndim == 2]
    assert [(value.dtype, value.shape) for value in stored] == [(np.uint8, WEIGHT_KN.shape)]


@pytest.mark.parametrize("limit", [64, 127])
def test_the_largest_weight_of_each_column_maps_to_the_limit(limit: int) -> None:
    integers, scale_N = quantization.symmetric(WEIGHT_KN, 1, limit)
    assert (np.abs(integers.astype(int)).max(axis=0) == limit).all()
    np.testing.assert_allclose(integers * scale_N, WEIGHT_KN, atol=scale_N.max() / 2 * 1.001)


def test_a_column_of_zeros_stays_zeros() -> None:
    integers, scale_N = quantization.symmetric(np.zeros((3, 2), dtype=np.float32), 1, 64)
    assert not integers.any()
    assert np.isfinite(scale_N).all()


def test_an_empty_batch_gives_an_empty_result() -> None:
    """A batch without masks gives the vocabulary head no rows."""
    for ranges in ({}, RANGES):
        model = quantization.quantize(linear(), DEFAULT, ranges=ranges).model
        assert answer(model, {"x": np.zeros((0, 24), np.float32)}).shape == (0, 16)


@pytest.mark.parametrize("shape", [(1, 24), (5, 24), (2, 3, 24), (2, 0, 24), (1, 2, 3, 24)])
def test_each_token_has_its_own_scale_in_tensors_of_any_rank(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    x *= 10.0 ** np.arange(x.size // 24).reshape(*shape[:-1], 1)
    model = linear()
    for tensor in (model.graph.input[0], model.graph.output[0]):
        tensor.type.tensor_type.ClearField("shape")
    given, exact = answer(quantization.quantize(model, DEFAULT).model, {"x": x}), x @ WEIGHT_KN
    assert given.shape == exact.shape
    assert (np.abs(given - exact).max(axis=-1) < 0.03 * np.abs(exact).max(axis=-1)).all()


def test_a_token_of_zeros_gives_zeros() -> None:
    assert not answer(quantization.quantize(linear(), DEFAULT).model, {"x": np.zeros((2, 24), np.float32)}).any()


def test_the_given_graph_is_not_changed_and_the_result_is_valid(tmp_path: Path) -> None:
    model = tied()
    before = model.SerializeToString(deterministic=True)
    write_graph(quantization.quantize(model, DEFAULT).model, tmp_path / "int8.onnx")
    assert model.SerializeToString(deterministic=True) == before


BIAS_N = np.arange(16, dtype=np.float32)
REACH = range_of(seen_in(ACTIVATION_TK))
RANGES = {"x": REACH}
BIASED = [helper.make_node("MatMul", ["x", "W"], ["p"]), helper.make_node("Add", ["bias", "p"], ["y"])]


@pytest.mark.parametrize("scheme", [DEFAULT, UNSIGNED])
def test_a_fixed_scale_is_near_fp32_but_not_fp32(scheme: quantization.Scheme) -> None:
    exact = ACTIVATION_TK @ WEIGHT_KN
    quantized = quantization.quantize(linear(), scheme, ranges=RANGES)
    error = np.abs(answer(quantized.model, {"x": ACTIVATION_TK}) - exact).max()
    assert 0 < error < 0.03 * np.abs(exact).max()
    assert (quantized.num_activations, dict(quantized.static)) == (1, RANGES)


def test_the_answer_for_a_token_does_not_depend_on_other_tokens() -> None:
    beside = np.concatenate([ACTIVATION_TK, 1000 * ACTIVATION_TK[:1]])
    model = quantization.quantize(linear(), DEFAULT, ranges=RANGES).model
    np.testing.assert_array_equal(answer(model, {"x": beside})[:5], answer(model, {"x": ACTIVATION_TK}))


def test_activations_outside_their_range_are_clipped() -> None:
    model = quantization.quantize(linear(), DEFAULT, ranges=RANGES).model
    far, ends = (np.full((2, 24), [[low], [high]], np.float32) for low, high in ((-1e9, 1e9), (REACH.low, REACH.high)))
    np.testing.assert_array_equal(answer(model, {"x": far}), answer(model, {"x": ends}))


@pytest.mark.parametrize("low", [-3.0, -0.17, 0.0])
def test_zero_is_exact_and_both_ends_are_within_half_a_step(low: float) -> None:
    scale, zero_point = quantization.scale_of(ActivationRange(low, 4.0, 1.0))
    assert 0 <= zero_point <= 255
    assert abs(-zero_point * scale - low) <= 0.51 * scale
    assert abs((255 - zero_point) * scale - 4.0) <= 0.51 * scale
    zeros = np.zeros((3, 24), np.float32)
    assert not answer(
        quantization.quantize(linear(), DEFAULT, ranges={"x": ActivationRange(low, 4.0, 1.0)}).model, {"x": zeros}
    ).any()


def test_a_range_of_width_0_does_not_divide_by_zero() -> None:
    model = quantization.quantize(linear(), DEFAULT, ranges={"x": ActivationRange(0.0, 0.0, 1.0)}).model
    assert not answer(model, {"x": np.zeros((2, 24), np.float32)}).any()


def test_a_fixed_scale_leaves_one_quantization_and_one_product() -> None:
    model = graph_of(BIASED, {"x": ACTIVATION_TK}, W=WEIGHT_KN, bias=BIAS_N)
    quantized = quantization.quantize(model, DEFAULT, ranges=RANGES).model
    assert op_counts(quantized) == {"QuantizeLinear": 1, quantization.PRODUCT: 1}
    given = answer(quantized, {"x": ACTIVATION_TK})
    exact = ACTIVATION_TK @ WEIGHT_KN
    np.testing.assert_allclose(given - BIAS_N, exact, atol=0.03 * np.abs(exact).max())


def test_an_activation_read_by_two_layers_is_quantized_once() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["a"]),
        helper.make_node("MatMul", ["x", "U"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    model = graph_of(nodes, {"x": ACTIVATION_TK}, W=WEIGHT_KN, U=-WEIGHT_KN)
    quantized = quantization.quantize(model, DEFAULT, ranges=RANGES)
    assert op_counts(quantized.model) == {"QuantizeLinear": 1, quantization.PRODUCT: 2, "Add": 1}
    assert quantized.num_activations == 1
    counts = op_counts(quantization.quantize(model, DEFAULT).model)
    assert (counts["QuantizeLinear"], counts[quantization.PRODUCT]) == (1, 2), "with scales at run time too"


def test_activations_without_a_range_keep_a_scale_for_each_token() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["a"]),
        helper.make_node("MatMul", ["a", "U"], ["y"]),
    ]
    model = graph_of(nodes, {"x": ACTIVATION_TK}, W=WEIGHT_KN, U=WEIGHT_KN.T.copy())
    quantized = quantization.quantize(model, DEFAULT, ranges=RANGES | {"of another graph": REACH})
    assert (quantized.num_activations, list(quantized.static)) == (2, ["x"])
    counts = op_counts(quantized.model)
    assert (counts["QuantizeLinear"], counts["ReduceMax"]) == (2, 1)
    beside = np.concatenate([ACTIVATION_TK, 1000 * ACTIVATION_TK[:1]])
    np.testing.assert_array_equal(
        answer(quantized.model, {"x": beside})[:5], answer(quantized.model, {"x": ACTIVATION_TK})
    )


def test_the_output_projection_also_uses_a_fixed_scale() -> None:
    reach = range_of(seen_in(TABLE_VH))
    quantized = quantization.quantize(tied(), DEFAULT, ranges={"h": reach}).model
    ids = np.array([3, 0, 39])
    exact = TABLE_VH[ids] @ TABLE_VH.T
    np.testing.assert_allclose(answer(quantized, {"ids": ids}), exact, atol=0.03 * np.abs(exact).max())


@pytest.mark.parametrize("weights", ["int7", "uint8"])
def test_no_integer_product_saturates(weights: str) -> None:
    """Every weight and every activation at its limit."""
    feeds = {"x": np.full((4, 24), 9, dtype=np.float32)}
    model = graph_of([helper.make_node("MatMul", ["x", "W"], ["y"])], feeds, W=np.ones((24, 16), dtype=np.float32))
    scheme = replace(DEFAULT, weights=weights)
    quantized = quantization.quantize(model, scheme, ranges={"x": ActivationRange(0.0, 9.0, 1.0)}).model
    np.testing.assert_array_equal(answer(quantized, feeds), answer(quantized, feeds, widened=True))
    np.testing.assert_allclose(answer(quantized, feeds), 9 * 24, rtol=0.01)


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
    quantized = quantization.quantize(model, DEFAULT, ranges=RANGES).model
    assert op_counts(quantized) == {"QuantizeLinear": 1, quantization.PRODUCT: 1, "Add": 1}
    exact = ACTIVATION_TK @ WEIGHT_KN
    np.testing.assert_allclose(answer(quantized, {"x": ACTIVATION_TK}) - 7, exact, atol=0.03 * np.abs(exact).max())
