"""Ranges of activations are measured token by token, on texts prepared as for inference; outlier channels are divided
by factors before one fixed scale quantizes them, and the answer stays the same.

K inputs and N outputs of a linear layer, T tokens, V vocabulary, H hidden.
"""

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from clozeline.exporting.fixed_scales import (
    SMOOTHED,
    ActivationRange,
    Seen,
    Smoothing,
    matrices,
    measured,
    range_of,
    smoothable,
    smoothed,
    smoothed_at_no_cost,
    smoothing_of,
)
from clozeline.exporting.graph import op_counts
from clozeline.exporting.quantization import Scheme, quantize
from clozeline.inference.package import load
from clozeline.records.package import FILES, read_manifest
from tests.exporting.conftest import TinyPackage
from tests.exporting.test_quantization import DEFAULT, UNSIGNED, answer, graph_of, node, seen_in
from tests.make.packages import write_encoder, write_tagger

OUTLIERS = [3, 17]
RANDOM = np.random.default_rng(0)
ALIKE_TK = RANDOM.normal(size=(400, 24)).astype(np.float32)
OUTLYING_TK = ALIKE_TK.copy()
OUTLYING_TK[:, OUTLIERS] *= 40
OUTLYING_TK[8:, OUTLIERS] /= 20
"""Outlier channels: far larger than the others in a few tokens, a little larger in most."""
WEIGHT_KN = RANDOM.normal(size=(24, 16)).astype(np.float32)
PRODUCT = node("MatMul", "x W", "y", name="product")
VECTORS = {"scale": np.arange(1, 25, dtype=np.float32), "bias": np.ones(24, dtype=np.float32)}


def linear(weight_KN: np.ndarray = WEIGHT_KN) -> onnx.ModelProto:
    return graph_of([PRODUCT], {"x": OUTLYING_TK}, W=weight_KN)


def normalized(*, has_bias: bool) -> onnx.ModelProto:
    given = ["scale", "bias"] if has_bias else ["scale"]
    norm = node("LayerNormalization", " ".join(["h", *given]), "x", axis=-1)
    return graph_of([norm, PRODUCT], {"h": OUTLYING_TK}, W=WEIGHT_KN, **{name: VECTORS[name] for name in given})


def smoothing(
    values_TK: np.ndarray, *weights_KN: np.ndarray, scheme: Scheme = DEFAULT, others_KN: np.ndarray = WEIGHT_KN
) -> Smoothing:
    return smoothing_of(seen_in(values_TK), [others_KN, *weights_KN], scheme)


def assert_same_answer(eased: onnx.ModelProto, graph: onnx.ModelProto) -> None:
    feeds = {graph.graph.input[0].name: OUTLYING_TK}
    np.testing.assert_array_equal(answer(eased, feeds), answer(graph, feeds))


def error_of(factor_K: np.ndarray, scheme: Scheme) -> float:
    """Return the mean squared error that INT8 with one fixed scale adds to the products."""
    ranges = {SMOOTHED.format("x"): range_of(seen_in((OUTLYING_TK / factor_K).astype(np.float32)))}
    quantized = quantize(smoothed(linear(), {"x": factor_K}, ["product"]), scheme, ranges=ranges)
    return float(np.square(answer(quantized.model, {"x": OUTLYING_TK}) - OUTLYING_TK @ WEIGHT_KN).mean())


def test_smoothing_leaves_the_product_bit_identical() -> None:
    transposed = [node("Transpose", "V", "W", perm=[1, 0]), PRODUCT]
    for graph in (linear(), graph_of(transposed, {"x": OUTLYING_TK}, V=WEIGHT_KN.T.copy())):
        before = graph.SerializeToString(deterministic=True)
        assert_same_answer(smoothed(graph, {"x": smoothing(OUTLYING_TK).factor_K}, ["product"]), graph)
        assert graph.SerializeToString(deterministic=True) == before, "the given graph is not changed"


def test_only_outlier_channels_are_divided_and_by_powers_of_two() -> None:
    factor_K = smoothing(OUTLYING_TK).factor_K
    assert set(np.flatnonzero(factor_K > 1)) == set(OUTLIERS)
    np.testing.assert_array_equal(np.log2(factor_K), np.round(np.log2(factor_K)))


@pytest.mark.parametrize("scheme", [DEFAULT, UNSIGNED])
def test_the_smoothing_factors_minimize_the_error_of_a_fixed_scale(scheme: Scheme) -> None:
    """For each power of two, measured on the outlier channels in both integer graphs."""
    error = error_of(smoothing(OUTLYING_TK, scheme=scheme).factor_K, scheme)
    outlying_K = np.isin(np.arange(24), OUTLIERS)
    others = [error_of(np.where(outlying_K, 2.0**power, 1.0), scheme) for power in range(8)]
    assert error < 0.5 * others[0], "against no smoothing"
    assert error <= 1.05 * min(others)
    assert others[0] > 1.5 * min(others) < others[-1] / 1.5


def test_the_ratio_of_a_smoothed_input_counts_its_remaining_range() -> None:
    plain, eased = range_of(seen_in(OUTLYING_TK)), smoothing(OUTLYING_TK)
    assert eased.reach.is_smoothed
    assert eased.reach.ratio < 0.5 * plain.ratio
    width = (eased.reach.high - eased.reach.low) / (plain.high - plain.low)
    coarser = np.sqrt(np.average(eased.factor_K**2, weights=np.square(WEIGHT_KN).sum(axis=1)))
    assert eased.reach.ratio == pytest.approx(plain.ratio * width * coarser, rel=0.07)
    left_TK = OUTLYING_TK / eased.factor_K
    assert eased.reach.low <= left_TK.min() < left_TK.max() <= eased.reach.high


def test_channels_of_similar_range_are_not_smoothed() -> None:
    assert smoothing(ALIKE_TK).factor_K.max() <= 2
    even = smoothing(np.sign(ALIKE_TK))
    assert (even.factor_K == 1).all()
    assert replace(even.reach, is_smoothed=False) == range_of(seen_in(np.sign(ALIKE_TK)))


def test_a_channel_without_headroom_in_its_weights_is_not_divided() -> None:
    heavy_KN = WEIGHT_KN.copy()
    heavy_KN[OUTLIERS] *= 1000
    assert (smoothing(OUTLYING_TK, others_KN=heavy_KN).factor_K[OUTLIERS] == 1).all()
    assert (smoothing(OUTLYING_TK, heavy_KN).factor_K[OUTLIERS] == 1).all(), "the second product's weights are large"


@pytest.mark.parametrize("weight_KN", [WEIGHT_KN, np.zeros_like(WEIGHT_KN)])
@pytest.mark.parametrize("num_tokens", [3, 0])
def test_an_unmeasured_activation_is_not_smoothed(num_tokens: int, weight_KN: np.ndarray) -> None:
    kept = smoothing(np.zeros((num_tokens, 24), np.float32), others_KN=weight_KN)
    assert (kept.factor_K == 1).all()
    assert kept.reach == ActivationRange(0, 0, np.inf, is_smoothed=True)
    assert np.isfinite(smoothing(OUTLYING_TK, others_KN=weight_KN).reach.ratio)


def test_products_of_one_activation_share_its_smoothed_copy() -> None:
    products = {"first": "x W", "second": "x U", "exact": "x V"}
    nodes = [node("MatMul", inputs, name, name=name) for name, inputs in products.items()]
    weights = {"W": WEIGHT_KN, "U": -2 * WEIGHT_KN, "V": WEIGHT_KN + 1}
    graph = graph_of([*nodes, node("Sum", "first second exact", "y")], {"x": OUTLYING_TK}, **weights)
    (found,) = smoothable(graph.graph, ["first", "second"]).values()
    np.testing.assert_array_equal(matrices(graph.graph, found), [weights["W"], weights["U"]])
    eased = smoothed(graph, {"x": smoothing(OUTLYING_TK, weights["U"]).factor_K}, ["first", "second"])
    assert op_counts(eased) == {"MatMul": 3, "Sum": 1, "Mul": 1}
    read = {node.name: node.input[0] for node in eased.graph.node if node.op_type == "MatMul"}
    assert read == {"first": "x/smoothed", "second": "x/smoothed", "exact": "x"}
    assert_same_answer(eased, graph)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_normalization_read_only_by_products_absorbs_the_smoothing_factors(has_bias: bool) -> None:
    graph = normalized(has_bias=has_bias)
    before = graph.SerializeToString(deterministic=True)
    assert smoothed_at_no_cost(graph.graph, ["product"]) == {"x"}
    factor_K = smoothing(OUTLYING_TK).factor_K
    eased = smoothed(graph, {"x": factor_K}, ["product"])
    assert op_counts(eased) == {"LayerNormalization": 1, "MatMul": 1, "Mul": 1 + has_bias}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in eased.graph.initializer}
    assert all(set(node.input) <= constants.keys() for node in eased.graph.node if node.op_type == "Mul")
    np.testing.assert_array_equal(constants["W"], factor_K[:, None].astype(np.float32) * WEIGHT_KN)
    assert_same_answer(eased, graph)
    assert graph.SerializeToString(deterministic=True) == before


def test_a_normalization_with_other_readers_is_not_smoothed() -> None:
    graph = normalized(has_bias=True)
    graph.graph.node[-1].output[0] = "p"
    graph.graph.node.extend([node("ReduceMax", "x", "largest", keepdims=0), node("Add", "p largest", "y")])
    assert not smoothed_at_no_cost(graph.graph, ["product"])
    eased = smoothed(graph, {"x": smoothing(OUTLYING_TK).factor_K}, ["product"])
    (multiplied,) = (node for node in eased.graph.node if node.op_type == "Mul")
    assert (multiplied.input[0], multiplied.output[0]) == ("x", "x/smoothed")
    assert_same_answer(eased, graph)


def test_a_weight_with_other_readers_stays_unchanged() -> None:
    """The file would hold it twice: a weight of shared layers, or a vocabulary tied to the embedding table."""
    square = np.eye(24, dtype=np.float32)

    def twice(weight: str) -> list[onnx.NodeProto]:
        return [node("MatMul", f"x {weight}", "h", name="first"), node("MatMul", f"h {weight}", "y", name="second")]

    for nodes in (twice("S"), [node("Transpose", "S", "T", perm=[1, 0]), *twice("T")]):
        assert smoothable(graph_of(nodes, {"x": OUTLYING_TK}, S=square).graph, ["first", "second"]) == {}
    tied = [
        node("Gather", "E ids", "h"),
        node("Transpose", "E", "E_t", perm=[1, 0]),
        node("MatMul", "h E_t", "y", name="vocabulary"),
    ]
    assert smoothable(graph_of(tied, {"ids": np.arange(5)}, E=WEIGHT_KN).graph, ["vocabulary"]) == {}


TEXTS = ["open the list", "return of the file", "list the files"]
OUTLIER = "return"


@pytest.fixture
def tagger(tiny_package: TinyPackage) -> Path:
    """Tagger whose only product reads rows of a random table, so all tokens have similar ranges."""
    return tiny_package(write_tagger)


def table_in(graph: onnx.ModelProto) -> onnx.TensorProto:
    return next(tensor for tensor in graph.graph.initializer if tensor.name == "embeddings")


def seen_of(folder: Path, name: str, graph: onnx.ModelProto | None = None) -> Seen:
    graph = graph or onnx.load(folder / FILES.fp32)
    return measured(graph, [name], folder / FILES.int8, read_manifest(folder), TEXTS)[name]


def test_token_and_channel_ranges_are_measured_over_all_texts_with_some_headroom(tagger: Path) -> None:
    ids_T = np.concatenate([text.ids_L for text in load(tagger, precision="fp32").tokenize(TEXTS)])
    rows_TH = numpy_helper.to_array(table_in(onnx.load(tagger / FILES.fp32)))[ids_T]
    seen, expected = seen_of(tagger, "embedded_BLH"), seen_in(rows_TH)
    for figure in fields(Seen):
        np.testing.assert_allclose(getattr(seen, figure.name), getattr(expected, figure.name), rtol=1e-5)
    reach = range_of(seen)
    assert 1.05 <= reach.high / rows_TH.max() <= 1.12
    assert 1.05 <= reach.low / rows_TH.min() <= 1.12


def test_an_outlier_token_raises_the_ratio(tagger: Path) -> None:
    assert range_of(seen_of(tagger, "embedded_BLH")).ratio < 2.5
    (row,) = load(tagger, precision="fp32").tokenize([OUTLIER])[0].ids_L[1:-1]
    graph = onnx.load(tagger / FILES.fp32)
    rows_VH = numpy_helper.to_array(table_in(graph)).copy()
    rows_VH[row] *= 200
    table_in(graph).CopyFrom(numpy_helper.from_array(rows_VH, "embeddings"))
    assert range_of(seen_of(tagger, "embedded_BLH", graph)).ratio > 50


def test_ranges_of_a_fill_mask_head_are_measured_on_texts_with_masks(tiny_package: TinyPackage) -> None:
    """Texts without a mask would show the head nothing."""
    assert 0 < range_of(seen_of(tiny_package(write_encoder), "hidden_MH")).ratio < 10


def range_over(*tokens: tuple[float, float]) -> ActivationRange:
    return range_of(seen_in(np.array(tokens, dtype=np.float32).reshape(-1, 2)))


@pytest.mark.parametrize(
    ("tokens", "ratio"),
    [([(-1, 1)] * 3, 1), ([(0, 1)] * 3, 0.5), ([(-1, 1), (-1, 1), (-1, 9)], 5), ([], math.inf), ([(0, 0)], math.inf)],
)
def test_the_ratio_is_the_fixed_step_over_the_step_of_a_typical_token(
    tokens: list[tuple[float, float]], ratio: float
) -> None:
    """A token's own scale is symmetric: values of one sign leave half of it unused, but use all of a fixed scale."""
    reach = range_over(*tokens)
    assert reach.ratio == ratio
    assert ratio < math.inf or (reach.low, reach.high) == (0, 0)


def test_zero_is_in_every_range() -> None:
    assert range_over((2, 4), (3, 5)).low == 0
    assert range_over((-5, -4), (-3, -2)).high == 0


def test_the_last_bits_of_a_float_change_no_range() -> None:
    """Processors differ in the last bits."""
    values_TK = np.random.default_rng(0).normal(size=(100, 10)).astype(np.float32)
    one, other = (range_of(seen_in(values_TK * factor)) for factor in (1.0, 1.0 + 1e-6))
    assert (one.low, one.high) == (other.low, other.high)
