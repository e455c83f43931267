"""INT8 graphs: which nodes change, their numbers, and the survival of a tied weight; scales at run time or fixed.

K inputs and N outputs of a linear layer, T rows, V vocabulary, H hidden.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from clozeline.exporting.fixed_scales import range_of
from clozeline.exporting.graph import Bias, biases, op_counts
from clozeline.exporting.quantization import (
    PRODUCT,
    ActivationRange,
    Quantized,
    Scheme,
    products_by_constants,
    quantize,
    scale_of,
    symmetric,
)
from tests.exporting.conftest import answer, graph_of, node, seen_in

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


REACH = range_of(seen_in(ACTIVATION_TK))
RANGES = {"x": REACH}


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


def tensors(quantized: Quantized) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.model.graph.initializer}


def matrices(quantized: Quantized) -> list[tuple[np.dtype, tuple[int, ...]]]:
    return [(value.dtype, value.shape) for value in tensors(quantized).values() if value.ndim == 2]


@pytest.mark.parametrize("scheme", [DEFAULT, UNSIGNED])
@pytest.mark.parametrize("ranges", [{}, RANGES])
def test_int8_is_near_fp32_but_not_fp32_and_quantizes_a_shared_activation_once(
    scheme: Scheme, ranges: Mapping[str, ActivationRange]
) -> None:
    quantized = quantize(linear(), scheme, ranges=ranges)
    error = np.abs(answer(quantized.model, X) - EXACT_TN).max()
    assert 0 < error < 0.03 * np.abs(EXACT_TN).max()
    assert (quantized.num_activations, dict(quantized.static)) == (1, ranges)
    counts = op_counts(quantize(two_layers(), scheme, ranges=ranges).model)
    assert (counts["QuantizeLinear"], counts[PRODUCT]) == (1, 2)


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
    plain = answer(model, X, graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    np.testing.assert_allclose(answer(model, X), plain, atol=1e-5)


@pytest.mark.parametrize("ranges", [{}, {"h": range_of(seen_in(TABLE_VH))}])
def test_a_tied_table_is_stored_once_in_8_bits_for_input_and_output(ranges: Mapping[str, ActivationRange]) -> None:
    quantized = quantize(tied(), DEFAULT, ranges=ranges)
    assert matrices(quantized) == [(np.int8, TABLE_VH.shape)]
    exact = TABLE_VH[IDS] @ TABLE_VH.T
    np.testing.assert_allclose(answer(quantized.model, {"ids": IDS}), exact, atol=0.03 * np.abs(exact).max())
    assert (quantized.num_matmuls, quantized.num_embeddings) == (1, 1)
    exact_table = quantize(tied(), replace(DEFAULT, embeddings=False), ranges=ranges)
    np.testing.assert_array_equal(tensors(exact_table)["E"], TABLE_VH)


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


@pytest.mark.parametrize("scheme", [DEFAULT, UNSIGNED])
@pytest.mark.parametrize("ranges", [{}, {"x": ActivationRange(0.0, 9.0, 1.0)}])
def test_no_integer_product_saturates(scheme: Scheme, ranges: Mapping[str, ActivationRange]) -> None:
    """Every weight and every activation at its limit give the largest sums that integers can give."""
    feeds = {"x": np.full((4, 24), 9, dtype=np.float32)}
    ones = graph_of([node("MatMul", "x W", "y")], feeds, W=np.ones((24, 16), dtype=np.float32))
    model = quantize(ones, scheme, ranges=ranges).model
    np.testing.assert_array_equal(answer(model, feeds), answer(model, feeds, wide_sums=True))
    np.testing.assert_allclose(answer(model, feeds), 9 * 24, rtol=0.01)


def test_unsigned_weights_have_half_the_error_of_7_bit_weights() -> None:
    feeds = {"x": np.eye(24, dtype=np.float32)}  # which is exact in 8 bits, so the error comes from the weights
    seven, eight = (
        np.abs(answer(quantize(linear(), scheme).model, feeds) - WEIGHT_KN).mean() for scheme in (DEFAULT, UNSIGNED)
    )
    assert eight < 0.55 * seven
    assert matrices(quantize(linear(), UNSIGNED)) == [(np.uint8, WEIGHT_KN.shape)]


def test_the_largest_weight_of_each_column_maps_to_the_limit_and_zeros_stay_zeros() -> None:
    limit = 64
    integers, scale_N = symmetric(WEIGHT_KN, 1, limit)
    assert (np.abs(integers.astype(int)).max(axis=0) == limit).all()
    np.testing.assert_allclose(integers * scale_N, WEIGHT_KN, atol=scale_N.max() / 2 * 1.001)
    integers, scale_N = symmetric(np.zeros((3, 2), dtype=np.float32), 1, limit)
    assert not integers.any()
    assert np.isfinite(scale_N).all()


@pytest.mark.parametrize("shape", [(5, 24), (2, 0, 24), (1, 2, 3, 24)])
def test_each_token_has_its_own_scale_in_tensors_of_any_rank(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    x *= 10.0 ** np.arange(x.size // 24).reshape(*shape[:-1], 1)
    model = linear()
    for tensor in (model.graph.input[0], model.graph.output[0]):
        tensor.type.tensor_type.ClearField("shape")
    given, exact = answer(quantize(model, DEFAULT).model, {"x": x}), x @ WEIGHT_KN
    assert given.shape == exact.shape
    assert (np.abs(given - exact).max(axis=-1) < 0.03 * np.abs(exact).max(axis=-1)).all()


def test_the_given_graph_is_not_changed() -> None:
    model = tied()
    before = model.SerializeToString(deterministic=True)
    onnx.checker.check_model(quantize(model, DEFAULT).model)
    assert model.SerializeToString(deterministic=True) == before


def test_activations_outside_their_range_are_clipped() -> None:
    model = quantize(linear(), DEFAULT, ranges=RANGES).model
    far, ends = (np.full((2, 24), [[low], [high]], np.float32) for low, high in ((-1e9, 1e9), (REACH.low, REACH.high)))
    np.testing.assert_array_equal(answer(model, {"x": far}), answer(model, {"x": ends}))


@pytest.mark.parametrize(("low", "high"), [(-0.17, 4.0), (0.0, 4.0), (0.0, 0.0)])
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


def test_a_product_with_another_reader_keeps_its_separate_sum() -> None:
    """Nor is a scalar taken for a bias."""
    product = node("MatMul", "x W", "p")
    scalar = np.array(1, np.float32)
    assert biases(of_x(product, node("Add", "p other", "y"), other=scalar).graph) == {}
    assert biases(of_x(product, node("Add", "p bias", "s"), node("Mul", "s p", "y"), bias=BIAS_N).graph) == {}


def test_activations_without_a_range_keep_a_scale_for_each_token() -> None:
    model = of_x(node("MatMul", "x W", "a"), node("MatMul", "a U", "y"), U=WEIGHT_KN.T.copy())
    quantized = quantize(model, DEFAULT, ranges=RANGES | {"of another graph": REACH})
    assert (quantized.num_activations, list(quantized.static)) == (2, ["x"])
    counts = op_counts(quantized.model)
    assert (counts["QuantizeLinear"], counts["ReduceMax"]) == (2, 1)
    beside = np.concatenate([ACTIVATION_TK, 1000 * ACTIVATION_TK[:1]])
    np.testing.assert_array_equal(answer(quantized.model, {"x": beside})[:5], answer(quantized.model, X))
