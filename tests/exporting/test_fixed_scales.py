"""Ranges of activations are measured token by token, on texts prepared as for inference; outlier channels are divided
by factors before one fixed scale quantizes them, and the answer stays the same.

K inputs and N outputs of a linear layer, T tokens, V vocabulary, H hidden.
"""

import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from clozeline.exporting import fixed_scales
from clozeline.exporting.graph import op_counts
from clozeline.exporting.quantization import Scheme, quantize
from clozeline.inference.package import load
from clozeline.records.package import FILES, read_manifest
from tests.exporting.conftest import TinyPackage, answer, graph_of, node, seen_in
from tests.exporting.test_quantization import DEFAULT, UNSIGNED
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


def smoothing(
    values_TK: np.ndarray, *weights_KN: np.ndarray, scheme: Scheme = DEFAULT, others_KN: np.ndarray = WEIGHT_KN
) -> fixed_scales.Smoothing:
    return fixed_scales.smoothing_of(seen_in(values_TK), [others_KN, *weights_KN], scheme)


def assert_same_answer(eased: onnx.ModelProto, graph: onnx.ModelProto) -> None:
    feeds = {graph.graph.input[0].name: OUTLYING_TK}
    np.testing.assert_array_equal(answer(eased, feeds), answer(graph, feeds))


def error_of(factor_K: np.ndarray, scheme: Scheme) -> float:
    """Return the mean squared error that INT8 with one fixed scale adds to the products."""
    ranges = {
        fixed_scales.SMOOTHED.format("x"): fixed_scales.range_of(seen_in((OUTLYING_TK / factor_K).astype(np.float32)))
    }
    quantized = quantize(fixed_scales.smoothed(linear(), {"x": factor_K}, ["product"]), scheme, ranges=ranges)
    return float(np.square(answer(quantized.model, {"x": OUTLYING_TK}) - OUTLYING_TK @ WEIGHT_KN).mean())


def test_smoothing_leaves_the_product_bit_identical() -> None:
    transposed = [node("Transpose", "V", "W", perm=[1, 0]), PRODUCT]
    for graph in (linear(), graph_of(transposed, {"x": OUTLYING_TK}, V=WEIGHT_KN.T.copy())):
        before = graph.SerializeToString(deterministic=True)
        assert_same_answer(fixed_scales.smoothed(graph, {"x": smoothing(OUTLYING_TK).factor_K}, ["product"]), graph)
        assert graph.SerializeToString(deterministic=True) == before, "the given graph is not changed"


@pytest.mark.parametrize("scheme", [DEFAULT, UNSIGNED])
def test_the_smoothing_factors_minimize_the_error_of_a_fixed_scale(scheme: Scheme) -> None:
    """For each power of two, measured on the outlier channels in both integer graphs."""
    error = error_of(smoothing(OUTLYING_TK, scheme=scheme).factor_K, scheme)
    outlying_K = np.isin(np.arange(24), OUTLIERS)
    others = [error_of(np.where(outlying_K, 2.0**power, 1.0), scheme) for power in range(8)]
    assert error < 0.5 * others[0], "against no smoothing"
    assert error <= 1.05 * min(others)
    assert others[0] > 1.5 * min(others) < others[-1] / 1.5


def test_only_outlier_channels_with_headroom_in_their_weights_are_divided_and_by_powers_of_two() -> None:
    plain, eased = fixed_scales.range_of(seen_in(OUTLYING_TK)), smoothing(OUTLYING_TK)
    assert set(np.flatnonzero(eased.factor_K > 1)) == set(OUTLIERS)
    np.testing.assert_array_equal(np.log2(eased.factor_K), np.round(np.log2(eased.factor_K)))
    assert eased.reach.is_smoothed
    assert eased.reach.ratio < 0.5 * plain.ratio
    width = (eased.reach.high - eased.reach.low) / (plain.high - plain.low)
    coarser = np.sqrt(np.average(eased.factor_K**2, weights=np.square(WEIGHT_KN).sum(axis=1)))
    assert eased.reach.ratio == pytest.approx(plain.ratio * width * coarser, rel=0.07)
    left_TK = OUTLYING_TK / eased.factor_K
    assert eased.reach.low <= left_TK.min() < left_TK.max() <= eased.reach.high
    assert (smoothing(np.sign(ALIKE_TK)).factor_K == 1).all(), "channels of similar range stay"
    heavy_KN = WEIGHT_KN.copy()
    heavy_KN[OUTLIERS] *= 1000
    assert (smoothing(OUTLYING_TK, heavy_KN).factor_K[OUTLIERS] == 1).all(), "the second product's weights are large"


@pytest.mark.parametrize(("num_tokens", "weight_KN"), [(3, WEIGHT_KN), (0, np.zeros_like(WEIGHT_KN))])
def test_an_unmeasured_activation_is_not_smoothed(num_tokens: int, weight_KN: np.ndarray) -> None:
    kept = smoothing(np.zeros((num_tokens, 24), np.float32), others_KN=weight_KN)
    assert (kept.factor_K == 1).all()
    assert kept.reach == fixed_scales.ActivationRange(0, 0, np.inf, is_smoothed=True)
    assert np.isfinite(smoothing(OUTLYING_TK, others_KN=weight_KN).reach.ratio)


def test_products_of_one_activation_share_its_smoothed_copy() -> None:
    products = {"first": "x W", "second": "x U", "exact": "x V"}
    nodes = [node("MatMul", inputs, name, name=name) for name, inputs in products.items()]
    weights = {"W": WEIGHT_KN, "U": -2 * WEIGHT_KN, "V": WEIGHT_KN + 1}
    graph = graph_of([*nodes, node("Sum", "first second exact", "y")], {"x": OUTLYING_TK}, **weights)
    (found,) = fixed_scales.smoothable(graph.graph, ["first", "second"]).values()
    np.testing.assert_array_equal(fixed_scales.matrices(graph.graph, found), [weights["W"], weights["U"]])
    eased = fixed_scales.smoothed(graph, {"x": smoothing(OUTLYING_TK, weights["U"]).factor_K}, ["first", "second"])
    read = {node.name: node.input[0] for node in eased.graph.node if node.op_type == "MatMul"}
    assert read == {"first": "x/smoothed", "second": "x/smoothed", "exact": "x"}
    assert_same_answer(eased, graph)


@pytest.mark.parametrize("given", ["h scale bias", "h scale"])
def test_a_normalization_read_only_by_products_absorbs_the_smoothing_factors(given: str) -> None:
    norm, vectors = node("LayerNormalization", given, "x", axis=-1), {name: VECTORS[name] for name in given.split()[1:]}
    graph = graph_of([norm, PRODUCT], {"h": OUTLYING_TK}, W=WEIGHT_KN, **vectors)
    assert fixed_scales.smoothed_at_no_cost(graph.graph, ["product"]) == {"x"}
    factor_K = smoothing(OUTLYING_TK).factor_K
    eased = fixed_scales.smoothed(graph, {"x": factor_K}, ["product"])
    assert op_counts(eased) == {"LayerNormalization": 1, "MatMul": 1, "Mul": len(vectors)}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in eased.graph.initializer}
    np.testing.assert_array_equal(constants["W"], factor_K[:, None].astype(np.float32) * WEIGHT_KN)
    assert_same_answer(eased, graph)

    graph.graph.node[-1].output[0] = "p"
    graph.graph.node.extend([node("ReduceMax", "x", "largest", keepdims=0), node("Add", "p largest", "y")])
    assert not fixed_scales.smoothed_at_no_cost(graph.graph, ["product"]), "it has another reader"
    assert_same_answer(fixed_scales.smoothed(graph, {"x": factor_K}, ["product"]), graph)


def test_a_weight_with_other_readers_stays_unchanged() -> None:
    """The file would hold it twice: a weight of shared layers, or a vocabulary tied to the embedding table."""
    square = np.eye(24, dtype=np.float32)

    def twice(weight: str) -> list[onnx.NodeProto]:
        return [node("MatMul", f"x {weight}", "h", name="first"), node("MatMul", f"h {weight}", "y", name="second")]

    for nodes in (twice("S"), [node("Transpose", "S", "T", perm=[1, 0]), *twice("T")]):
        assert fixed_scales.smoothable(graph_of(nodes, {"x": OUTLYING_TK}, S=square).graph, ["first", "second"]) == {}


TEXTS = ["open the list", "return of the file", "list the files"]


@pytest.fixture
def tagger(tiny_package: TinyPackage) -> Path:
    """Tagger whose only product reads rows of a random table, so all tokens have similar ranges."""
    return tiny_package(write_tagger)


def table_in(graph: onnx.ModelProto) -> onnx.TensorProto:
    return next(tensor for tensor in graph.graph.initializer if tensor.name == "embeddings")


def seen_of(folder: Path, name: str, graph: onnx.ModelProto) -> fixed_scales.Seen:
    return fixed_scales.measured(graph, [name], folder / FILES.int8, read_manifest(folder), TEXTS)[name]


def test_token_and_channel_ranges_are_measured_over_all_texts_and_an_outlier_token_raises_the_ratio(
    tiny_package: TinyPackage,
) -> None:
    """The tagger's only product reads rows of a random table, so all tokens have similar ranges."""
    tagger = tiny_package(write_tagger)
    graph, opened = onnx.load(tagger / FILES.fp32), load(tagger, precision="fp32")
    table = next(tensor for tensor in graph.graph.initializer if tensor.name == "embeddings")
    rows_VH = numpy_helper.to_array(table).copy()
    rows_TH = rows_VH[np.concatenate([text.ids_L for text in opened.tokenize(TEXTS)])]
    seen, expected = seen_of(tagger, "embedded_BLH", graph), seen_in(rows_TH)
    for figure in fields(fixed_scales.Seen):
        np.testing.assert_allclose(getattr(seen, figure.name), getattr(expected, figure.name), rtol=1e-5)
    reach = fixed_scales.range_of(seen)
    assert 1.05 <= reach.high / rows_TH.max() <= 1.12
    assert 1.05 <= reach.low / rows_TH.min() <= 1.12
    assert reach.ratio < 2.5
    (row,) = opened.tokenize(["return"])[0].ids_L[1:-1]
    rows_VH[row] *= 200
    table.CopyFrom(numpy_helper.from_array(rows_VH, "embeddings"))
    assert fixed_scales.range_of(seen_of(tagger, "embedded_BLH", graph)).ratio > 50


def test_ranges_of_a_fill_mask_head_are_measured_on_texts_with_masks(tiny_package: TinyPackage) -> None:
    """Texts without a mask would show the head nothing."""
    encoder = tiny_package(write_encoder)
    assert 0 < fixed_scales.range_of(seen_of(encoder, "hidden_MH", onnx.load(encoder / FILES.fp32))).ratio < 10


def range_over(*tokens: tuple[float, float]) -> fixed_scales.ActivationRange:
    return fixed_scales.range_of(seen_in(np.array(tokens, dtype=np.float32).reshape(-1, 2)))


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


def test_zero_is_in_every_range_and_the_last_bits_of_a_float_change_none() -> None:
    """Processors differ in the last bits."""
    assert range_over((2, 4), (3, 5)).low == 0
    assert range_over((-5, -4), (-3, -2)).high == 0
    one, other = (fixed_scales.range_of(seen_in(ALIKE_TK * np.float32(factor))) for factor in (1.0, 1.0 + 1e-6))
    assert (one.low, one.high) == (other.low, other.high)
