"""INT8 graphs: which nodes change, their numbers, and the survival of a tied weight; scales at run time or fixed.

K inputs and N outputs of a linear layer, T rows, V vocabulary, H hidden.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from clozeline.exporting.fixed_scales import Seen, range_of
from clozeline.exporting.graph import Bias, biases, op_counts, write_graph
from clozeline.exporting.quantization import (
    PRODUCT,
    ActivationRange,
    Quantized,
    Scheme,
    Weights,
    products_by_constants,
    quantize,
    scale_of,
    symmetric,
)

DEFAULT = Scheme(weights="int7", embeddings=True)
UNSIGNED = replace(DEFAULT, weights="uint8")
RANDOM = np.random.default_rng(0)
WEIGHT_KN = RANDOM.normal(size=(24, 16)).astype(np.float32)
TABLE_VH = RANDOM.normal(size=(40, 24)).astype(np.float32)
ACTIVATION_TK = RANDOM.normal(size=(5, 24)).astype(np.float32)
BIAS_N = np.arange(16, dtype=np.float32)
X = {"x": ACTIVATION_TK}
EXACT_TN = ACTIVATION_TK @ WEIGHT_KN
IDS = np.array([3, 0, 39])


def seen_in(values_TK: np.ndarray) -> Seen:
    """Return the range statistics of these tokens."""
    return Seen(
        values_TK.min(axis=1),
        values_TK.max(axis=1),
        values_TK.min(axis=0, initial=0.0),
        values_TK.max(axis=0, initial=0.0),
        np.square(values_TK).sum(axis=0) / max(len(values_TK), 1),
    )


REACH = range_of(seen_in(ACTIVATION_TK))
RANGES = {"x": REACH}


def node(op_type: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], **attributes)


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


def of_x(*nodes: onnx.NodeProto, **constants: np.ndarray) -> onnx.ModelProto:
    """A graph from the input `x` with the weight `W`."""
    return graph_of(list(nodes), X, W=WEIGHT_KN, **constants)


def linear() -> onnx.ModelProto:
    return of_x(node("MatMul", "x W", "y"))


def two_layers() -> onnx.ModelProto:
    nodes = [node("MatMul", "x W", "a", name="first"), node("MatMul", "x U", "b", name="second")]
    return of_x(*nodes, node("Add", "a b", "y"), U=-WEIGHT_KN)


def tied(table_VH: np.ndarray = TABLE_VH) -> onnx.ModelProto:
    """Return a graph with an embedding whose table is also the vocabulary head."""
    nodes = [
        node("Gather", "E ids", "h"),
        node("Transpose", "E", "E_t", perm=[1, 0]),
        node("MatMul", "h E_t", "y"),
    ]
    return graph_of(nodes, {"ids": np.arange(5)}, E=table_VH)


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


def tensors(quantized: Quantized) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.model.graph.initializer}


def matrices(quantized: Quantized) -> list[tuple[np.dtype, tuple[int, ...]]]:
    return [(value.dtype, value.shape) for value in tensors(quantized).values() if value.ndim == 2]


@pytest.mark.parametrize(("weights", "reduce_range"), [("int7", True), ("int8", False)])
def test_weights_are_stored_as_onnxruntime_stores_them(tmp_path: Path, weights: Weights, reduce_range: bool) -> None:
    onnx.save(linear(), tmp_path / "fp32.onnx")
    paths = tmp_path / "fp32.onnx", tmp_path / "int8.onnx"
    quantize_dynamic(*paths, per_channel=True, reduce_range=reduce_range, weight_type=QuantType.QInt8)
    stored = [numpy_helper.to_array(tensor) for tensor in onnx.load(paths[1]).graph.initializer]
    ours = tensors(quantize(linear(), replace(DEFAULT, weights=weights)))
    limit = 64 if reduce_range else 127
    for name in (f"W/{limit}/1", f"W/{limit}/1/scale"):
        assert any(value.shape == ours[name].shape and np.allclose(value, ours[name], atol=1e-7) for value in stored)


@pytest.mark.parametrize("scheme", [DEFAULT, UNSIGNED])
@pytest.mark.parametrize("ranges", [{}, RANGES])
def test_int8_is_near_fp32_but_not_fp32(scheme: Scheme, ranges: Mapping[str, ActivationRange]) -> None:
    quantized = quantize(linear(), scheme, ranges=ranges)
    error = np.abs(answer(quantized.model, X) - EXACT_TN).max()
    assert 0 < error < 0.03 * np.abs(EXACT_TN).max()
    assert (quantized.num_activations, dict(quantized.static)) == (1, ranges)


@pytest.mark.parametrize("ranges", [{}, RANGES])
def test_a_token_depends_on_no_other_and_zeros_and_empty_batches_stay(ranges: Mapping[str, ActivationRange]) -> None:
    """A batch without masks gives the vocabulary head no rows."""
    model = quantize(linear(), DEFAULT, ranges=ranges).model
    beside = np.concatenate([ACTIVATION_TK, 1000 * ACTIVATION_TK[:1]])
    np.testing.assert_array_equal(answer(model, {"x": beside})[:5], answer(model, X))
    assert not answer(model, {"x": np.zeros((2, 24), np.float32)}).any()
    assert answer(model, {"x": np.zeros((0, 24), np.float32)}).shape == (0, 16)


def test_fusions_of_onnxruntime_do_not_change_the_result() -> None:
    model = quantize(of_x(node("MatMul", "x W", "p"), node("Add", "p bias", "y"), bias=BIAS_N), DEFAULT).model
    plain = answer(model, X, level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    np.testing.assert_allclose(answer(model, X), plain, atol=1e-5)


@pytest.mark.parametrize("ranges", [{}, {"h": range_of(seen_in(TABLE_VH))}])
def test_a_tied_table_is_stored_once_in_8_bits_for_input_and_output(ranges: Mapping[str, ActivationRange]) -> None:
    quantized = quantize(tied(), DEFAULT, ranges=ranges)
    assert matrices(quantized) == [(np.int8, TABLE_VH.shape)]
    exact = TABLE_VH[IDS] @ TABLE_VH.T
    np.testing.assert_allclose(answer(quantized.model, {"ids": IDS}), exact, atol=0.03 * np.abs(exact).max())
    assert (quantized.num_matmuls, quantized.num_embeddings) == (1, 1)


def test_without_quantized_embeddings_the_table_stays_exact() -> None:
    quantized = quantize(tied(), replace(DEFAULT, embeddings=False))
    assert quantized.num_embeddings == 0
    np.testing.assert_array_equal(tensors(quantized)["E"], TABLE_VH)


@pytest.mark.parametrize(
    ("lookup", "feeds"),
    [(node("Gather", "E given", "y"), np.arange(7)), (node("Slice", "E zero given zero", "y"), np.array([7]))],
    ids=["an untied table", "a sliced position table"],
)
def test_a_looked_up_table_uses_all_8_bits_of_each_row(lookup: onnx.NodeProto, feeds: np.ndarray) -> None:
    rows = TABLE_VH * np.arange(1, 41, dtype=np.float32)[:, None]
    quantized = quantize(graph_of([lookup], {"given": feeds}, E=rows, zero=np.array([0])), DEFAULT)
    assert quantized.num_embeddings == 1
    assert "E" not in tensors(quantized)
    integers = next(value for value in tensors(quantized).values() if value.dtype == np.int8)
    assert (np.abs(integers).max(axis=1) == 127).all()
    error_L = np.abs(answer(quantized.model, {"given": feeds}) - rows[:7]).max(axis=1)
    assert (error_L <= np.abs(rows[:7]).max(axis=1) / 254 * 1.001).all()


def test_products_of_activations_and_gemm_stay_unchanged() -> None:
    turned = [node("Transpose", "x", "x_t", perm=[1, 0]), node("MatMul", "x x_t", "scores")]
    model = of_x(*turned, node("MatMul", "scores x", "mixed"), node("Gemm", "mixed W", "y"))
    assert op_counts(quantize(model, DEFAULT).model) == {"Transpose": 1, "MatMul": 2, "Gemm": 1}


def test_products_named_as_exact_are_not_quantized() -> None:
    quantized = quantize(two_layers(), DEFAULT, exact=["second"])
    assert [node.name for node in quantized.model.graph.node if node.op_type == "MatMul"] == ["second"]
    assert (quantized.num_matmuls, quantized.exact) == (1, ("second",))


def test_an_exact_output_projection_reuses_the_8_bit_embedding_table() -> None:
    """The file does not grow: it has no second copy in floats."""
    quantized = quantize(tied(), DEFAULT, exact=list(products_by_constants(tied())))
    assert matrices(quantized) == [(np.int8, TABLE_VH.shape)]
    (table,) = (value for value in tensors(quantized).values() if value.ndim == 2)
    scale_V = next(value for value in tensors(quantized).values() if value.shape == (len(TABLE_VH),))
    rows_VH = table * scale_V[:, None]
    np.testing.assert_allclose(answer(quantized.model, {"ids": IDS}), rows_VH[IDS] @ rows_VH.T, atol=1e-4)
    assert quantized.num_matmuls == 0


def test_onnxruntime_folds_the_operations_on_weights_into_constants(tmp_path: Path) -> None:
    """A transposed weight costs nothing at run time."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    content = quantize(tied(), DEFAULT).model.SerializeToString()
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    assert not {"Transpose", "Add"} & op_counts(onnx.load(tmp_path / "optimized.onnx")).keys()


@pytest.mark.parametrize("scheme", [DEFAULT, UNSIGNED])
@pytest.mark.parametrize("ranges", [{}, {"x": ActivationRange(0.0, 9.0, 1.0)}])
def test_no_integer_product_saturates(scheme: Scheme, ranges: Mapping[str, ActivationRange]) -> None:
    """Every weight and every activation at its limit give the largest sums that integers can give."""
    feeds = {"x": np.full((4, 24), 9, dtype=np.float32)}
    ones = graph_of([node("MatMul", "x W", "y")], feeds, W=np.ones((24, 16), dtype=np.float32))
    model = quantize(ones, scheme, ranges=ranges).model
    np.testing.assert_array_equal(answer(model, feeds), answer(model, feeds, widened=True))
    np.testing.assert_allclose(answer(model, feeds), 9 * 24, rtol=0.01)
    ids = {"ids": np.array([3, 0])}
    head = quantize(tied(np.ones((40, 24), dtype=np.float32)), scheme).model
    np.testing.assert_array_equal(answer(head, ids), answer(head, ids, widened=True))
    np.testing.assert_allclose(answer(head, ids), 24, rtol=0.01)


def test_unsigned_weights_have_half_the_error_of_7_bit_weights() -> None:
    feeds = {"x": np.eye(24, dtype=np.float32)}  # which is exact in 8 bits, so the error comes from the weights
    seven, eight = (
        np.abs(answer(quantize(linear(), scheme).model, feeds) - WEIGHT_KN).mean() for scheme in (DEFAULT, UNSIGNED)
    )
    assert eight < 0.55 * seven
    assert matrices(quantize(linear(), UNSIGNED)) == [(np.uint8, WEIGHT_KN.shape)]


@pytest.mark.parametrize("limit", [64, 127])
def test_the_largest_weight_of_each_column_maps_to_the_limit_and_zeros_stay_zeros(limit: int) -> None:
    integers, scale_N = symmetric(WEIGHT_KN, 1, limit)
    assert (np.abs(integers.astype(int)).max(axis=0) == limit).all()
    np.testing.assert_allclose(integers * scale_N, WEIGHT_KN, atol=scale_N.max() / 2 * 1.001)
    integers, scale_N = symmetric(np.zeros((3, 2), dtype=np.float32), 1, limit)
    assert not integers.any()
    assert np.isfinite(scale_N).all()


@pytest.mark.parametrize("shape", [(1, 24), (5, 24), (2, 3, 24), (2, 0, 24), (1, 2, 3, 24)])
def test_each_token_has_its_own_scale_in_tensors_of_any_rank(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    x *= 10.0 ** np.arange(x.size // 24).reshape(*shape[:-1], 1)
    model = linear()
    for tensor in (model.graph.input[0], model.graph.output[0]):
        tensor.type.tensor_type.ClearField("shape")
    given, exact = answer(quantize(model, DEFAULT).model, {"x": x}), x @ WEIGHT_KN
    assert given.shape == exact.shape
    assert (np.abs(given - exact).max(axis=-1) < 0.03 * np.abs(exact).max(axis=-1)).all()


def test_the_given_graph_is_not_changed_and_the_result_is_valid(tmp_path: Path) -> None:
    model = tied()
    before = model.SerializeToString(deterministic=True)
    write_graph(quantize(model, DEFAULT).model, tmp_path / "int8.onnx")
    assert model.SerializeToString(deterministic=True) == before


def test_activations_outside_their_range_are_clipped() -> None:
    model = quantize(linear(), DEFAULT, ranges=RANGES).model
    far, ends = (np.full((2, 24), [[low], [high]], np.float32) for low, high in ((-1e9, 1e9), (REACH.low, REACH.high)))
    np.testing.assert_array_equal(answer(model, {"x": far}), answer(model, {"x": ends}))


@pytest.mark.parametrize(("low", "high"), [(-3.0, 4.0), (-0.17, 4.0), (0.0, 4.0), (0.0, 0.0)])
def test_zero_is_exact_and_both_ends_are_within_half_a_step(low: float, high: float) -> None:
    reach = ActivationRange(low, high, 1.0)
    scale, zero_point = scale_of(reach)
    assert 0 <= zero_point <= 255
    assert abs(-zero_point * scale - low) <= 0.51 * scale
    assert high == 0 or abs((255 - zero_point) * scale - high) <= 0.51 * scale
    model = quantize(linear(), DEFAULT, ranges={"x": reach}).model
    assert not answer(model, {"x": np.zeros((3, 24), np.float32)}).any()


@pytest.mark.parametrize(
    ("inputs", "added", "num_separate"),
    [("bias p", BIAS_N, 0), ("p bias", BIAS_N, 0), ("p bias", np.array([7], np.float32), 1)],
)
def test_a_fixed_scale_leaves_one_quantization_and_one_product_with_its_bias(
    inputs: str, added: np.ndarray, num_separate: int
) -> None:
    """A one-element vector stays a separate sum: the operator needs one number for each output."""
    model = of_x(node("MatMul", "x W", "p"), node("Add", inputs, "y"), bias=added)
    assert biases(model.graph) == {"p": Bias("bias", len(added), "y")}
    quantized = quantize(model, DEFAULT, ranges=RANGES).model
    counts = {"QuantizeLinear": 1, PRODUCT: 1, "Add": num_separate}
    assert op_counts(quantized) == {name: number for name, number in counts.items() if number}
    np.testing.assert_allclose(answer(quantized, X) - added, EXACT_TN, atol=0.03 * np.abs(EXACT_TN).max())


@pytest.mark.parametrize("other", [np.ones((1, 16), np.float32), np.array(1, np.float32)])
def test_tensors_of_other_shapes_are_not_taken_for_a_bias(other: np.ndarray) -> None:
    assert biases(of_x(node("MatMul", "x W", "p"), node("Add", "p other", "y"), other=other).graph) == {}


def test_a_product_with_another_reader_keeps_its_separate_sum() -> None:
    product = node("MatMul", "x W", "p")
    assert biases(of_x(product, node("Add", "p bias", "s"), node("Mul", "s p", "y"), bias=BIAS_N).graph) == {}
    given_out = of_x(product, node("Add", "p bias", "y"), bias=BIAS_N)
    given_out.graph.output.append(helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, ["rows", 16]))
    assert biases(given_out.graph) == {}


def test_an_activation_read_by_two_layers_is_quantized_once() -> None:
    for ranges in ({}, RANGES):
        quantized = quantize(two_layers(), DEFAULT, ranges=ranges)
        counts = op_counts(quantized.model)
        assert (counts["QuantizeLinear"], counts[PRODUCT], quantized.num_activations) == (1, 2, 1)


def test_activations_without_a_range_keep_a_scale_for_each_token() -> None:
    model = of_x(node("MatMul", "x W", "a"), node("MatMul", "a U", "y"), U=WEIGHT_KN.T.copy())
    quantized = quantize(model, DEFAULT, ranges=RANGES | {"of another graph": REACH})
    assert (quantized.num_activations, list(quantized.static)) == (2, ["x"])
    counts = op_counts(quantized.model)
    assert (counts["QuantizeLinear"], counts["ReduceMax"]) == (2, 1)
    beside = np.concatenate([ACTIVATION_TK, 1000 * ACTIVATION_TK[:1]])
    np.testing.assert_array_equal(answer(quantized.model, {"x": beside})[:5], answer(quantized.model, X))
