"""Ranges of activations are measured token by token, on texts prepared as for inference; outlier channels are divided
by factors before one fixed scale quantizes them, and the answer stays the same.

K inputs and N outputs of a linear layer, T tokens, V vocabulary, H hidden.
"""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

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
from tests.exporting.test_quantization import DEFAULT, UNSIGNED, answer, graph_of, seen_in
from tests.make.packages import write_encoder, write_tagger

OUTLIERS = [3, 17]
RANDOM = np.random.default_rng(0)
ALIKE_TK = RANDOM.normal(size=(400, 24)).astype(np.float32)
OUTLYING_TK = ALIKE_TK.copy()
OUTLYING_TK[:, OUTLIERS] *= 40
OUTLYING_TK[8:, OUTLIERS] /= 20
"""Outlier channels: far larger than the others in a few tokens, a little larger in most."""
WEIGHT_KN = RANDOM.normal(size=(24, 16)).astype(np.float32)
PRODUCT = helper.make_node("MatMul", ["x", "W"], ["y"], name="product")


def linear() -> onnx.ModelProto:
    return graph_of([PRODUCT], {"x": OUTLYING_TK}, W=WEIGHT_KN)


def stored_transposed() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Transpose", ["V"], ["W"], perm=[1, 0]),
        PRODUCT,
    ]
    return graph_of(nodes, {"x": OUTLYING_TK}, V=WEIGHT_KN.T.copy())


def normalized(*more: onnx.NodeProto, has_bias: bool) -> onnx.ModelProto:
    vectors = {"scale": np.arange(1, 25, dtype=np.float32), "bias": np.ones(24, dtype=np.float32)}
    given = ["h", "scale", *(["bias"] if has_bias else [])]
    nodes = [helper.make_node("LayerNormalization", given, ["x"], axis=-1), PRODUCT, *more]
    return graph_of(nodes, {"h": OUTLYING_TK}, W=WEIGHT_KN, **{name: vectors[name] for name in given[1:]})


def smoothing(
    values_TK: np.ndarray, *weights_KN: np.ndarray, scheme: Scheme = DEFAULT, others_KN: np.ndarray = WEIGHT_KN
) -> Smoothing:
    return smoothing_of(seen_in(values_TK), [others_KN, *weights_KN], scheme)


def error_of(factor_K: np.ndarray, scheme: Scheme, weight_KN: np.ndarray = WEIGHT_KN) -> float:
    """Return the mean squared error that INT8 with one fixed scale adds to the products."""
    graph = graph_of([PRODUCT], {"x": OUTLYING_TK}, W=weight_KN)
    eased = smoothed(graph, {"x": factor_K}, ["product"])
    ranges = {SMOOTHED.format("x"): range_of(seen_in((OUTLYING_TK / factor_K).astype(np.float32)))}
    given = answer(quantize(eased, scheme, ranges=ranges).model, {"x": OUTLYING_TK})
    return float(np.square(given - OUTLYING_TK @ weight_KN).mean())


@pytest.mark.parametrize("graph", [linear(), stored_transposed()])
def test_fixed_scales_leaves_the_product_bit_identical(graph: onnx.ModelProto) -> None:
    factor_K = smoothing(OUTLYING_TK).factor_K
    given = answer(smoothed(graph, {"x": factor_K}, ["product"]), {"x": OUTLYING_TK})
    np.testing.assert_array_equal(given, answer(graph, {"x": OUTLYING_TK}))


def test_only_outlier_channels_are_divided_and_by_powers_of_two() -> None:
    factor_K = smoothing(OUTLYING_TK).factor_K
    assert set(np.flatnonzero(factor_K > 1)) == set(OUTLIERS)
    np.testing.assert_array_equal(np.log2(factor_K), np.round(np.log2(factor_K)))


@pytest.mark.parametrize("scheme", [DEFAULT, UNSIGNED])
def test_fixed_scales_lowers_the_error_of_a_fixed_scale(scheme: Scheme) -> None:
    chosen = smoothing(OUTLYING_TK, scheme=scheme)
    as_it_is = error_of(np.ones(24), scheme)
    assert error_of(chosen.factor_K, scheme) < 0.5 * as_it_is


@pytest.mark.parametrize("scheme", [DEFAULT, UNSIGNED])
def test_the_smoothing_factors_minimize_the_error(scheme: Scheme) -> None:
    """For each power of two, measured on the outlier channels in both integer graphs."""
    chosen = smoothing(OUTLYING_TK, scheme=scheme).factor_K
    outlying_K = np.isin(np.arange(24), OUTLIERS)
    others = [error_of(np.where(outlying_K, 2.0**power, 1.0), scheme) for power in range(8)]
    assert error_of(chosen, scheme) <= 1.05 * min(others)
    assert others[0] > 1.5 * min(others) < others[-1] / 1.5


def test_the_ratio_of_a_smoothed_input_counts_its_remaining_range() -> None:
    plain, eased = range_of(seen_in(OUTLYING_TK)), smoothing(OUTLYING_TK)
    assert eased.reach.is_smoothed
    assert eased.reach.ratio < 0.5 * plain.ratio
    width = (eased.reach.high - eased.reach.low) / (plain.high - plain.low)
    coarser = np.sqrt(np.average(eased.factor_K**2, weights=np.square(WEIGHT_KN).sum(axis=1)))
    assert eased.reach.ratio == pytest.approx(plain.ratio * width * coarser, rel=0.07)
    left_TK = OUTLYING_TK / eased.factor_K
    assert left_TK.min() >= eased.reach.low
    assert left_TK.max() <= eased.reach.high


def test_channels_of_similar_range_are_not_smoothed() -> None:
    kept = smoothing(ALIKE_TK)
    assert kept.factor_K.max() <= 2
    even = smoothing(np.sign(ALIKE_TK))
    assert (even.factor_K == 1).all()
    assert replace(even.reach, is_smoothed=False) == range_of(seen_in(np.sign(ALIKE_TK)))


def test_a_channel_without_headroom_in_its_weights_is_not_divided() -> None:
    heavy_KN = WEIGHT_KN.copy()
    heavy_KN[OUTLIERS] *= 1000
    assert (smoothing(OUTLYING_TK, others_KN=heavy_KN).factor_K[OUTLIERS] == 1).all()
    assert (smoothing(OUTLYING_TK, heavy_KN).factor_K[OUTLIERS] == 1).all(), "the second product's weights are large"


@pytest.mark.parametrize("weight_KN", [WEIGHT_KN, np.zeros_like(WEIGHT_KN)])
@pytest.mark.parametrize("values_TK", [np.zeros((3, 24)), np.zeros((0, 24))])
def test_an_unmeasured_activation_is_not_smoothed(values_TK: np.ndarray, weight_KN: np.ndarray) -> None:
    kept = smoothing(values_TK.astype(np.float32), others_KN=weight_KN)
    assert (kept.factor_K == 1).all()
    assert kept.reach == ActivationRange(0, 0, np.inf, is_smoothed=True)


def test_all_zero_weights_cause_no_division_by_zero() -> None:
    assert np.isfinite(smoothing(OUTLYING_TK, others_KN=np.zeros_like(WEIGHT_KN)).reach.ratio)


def test_products_of_one_activation_share_its_smoothed_copy() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["a"], name="first"),
        helper.make_node("MatMul", ["x", "U"], ["b"], name="second"),
        helper.make_node("MatMul", ["x", "V"], ["c"], name="exact"),
        helper.make_node("Sum", ["a", "b", "c"], ["y"]),
    ]
    weights = {"W": WEIGHT_KN, "U": -2 * WEIGHT_KN, "V": WEIGHT_KN + 1}
    graph, products = graph_of(nodes, {"x": OUTLYING_TK}, **weights), ["first", "second"]
    (found,) = smoothable(graph.graph, products).values()
    np.testing.assert_array_equal(matrices(graph.graph, found), [weights["W"], weights["U"]])
    eased = smoothed(graph, {"x": smoothing(OUTLYING_TK, weights["U"]).factor_K}, products)
    assert op_counts(eased) == {"MatMul": 3, "Sum": 1, "Mul": 1}
    read = {node.name: node.input[0] for node in eased.graph.node if node.op_type == "MatMul"}
    assert read == {"first": "x/smoothed", "second": "x/smoothed", "exact": "x"}
    np.testing.assert_array_equal(answer(eased, {"x": OUTLYING_TK}), answer(graph, {"x": OUTLYING_TK}))


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_normalization_read_only_by_products_absorbs_the_smoothing_factors(has_bias: bool) -> None:
    graph = normalized(has_bias=has_bias)
    assert smoothed_at_no_cost(graph.graph, ["product"]) == {"x"}
    eased = smoothed(graph, {"x": smoothing(OUTLYING_TK).factor_K}, ["product"])
    assert op_counts(eased) == {"LayerNormalization": 1, "MatMul": 1, "Mul": 1 + has_bias}
    constants = {tensor.name for tensor in eased.graph.initializer}
    assert all(set(node.input) <= constants for node in eased.graph.node if node.op_type == "Mul")
    np.testing.assert_array_equal(answer(eased, {"h": OUTLYING_TK}), answer(graph, {"h": OUTLYING_TK}))


def test_a_normalization_with_other_readers_is_not_smoothed() -> None:
    graph = normalized(has_bias=True)
    graph.graph.node[-1].output[0] = "p"
    graph.graph.node.append(helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0))
    graph.graph.node.append(helper.make_node("Add", ["p", "largest"], ["y"]))
    assert not smoothed_at_no_cost(graph.graph, ["product"])
    eased = smoothed(graph, {"x": smoothing(OUTLYING_TK).factor_K}, ["product"])
    (multiplied,) = (node for node in eased.graph.node if node.op_type == "Mul")
    assert (multiplied.input[0], multiplied.output[0]) == ("x", "x/smoothed")
    np.testing.assert_array_equal(answer(eased, {"h": OUTLYING_TK}), answer(graph, {"h": OUTLYING_TK}))


def test_a_weight_with_other_readers_stays_unchanged() -> None:
    """The file would hold it twice: a weight of shared layers, or a vocabulary tied to the embedding table."""
    twice = [
        helper.make_node("MatMul", ["x", "S"], ["h"], name="first"),
        helper.make_node("MatMul", ["h", "S"], ["y"], name="second"),
    ]
    square = {"S": np.eye(24, dtype=np.float32)}
    assert smoothable(graph_of(twice, {"x": OUTLYING_TK}, **square).graph, ["first", "second"]) == {}
    transposed = [helper.make_node("Transpose", ["S"], ["T"], perm=[1, 0]), *twice]
    for node in transposed[1:]:
        node.input[1] = "T"
    assert smoothable(graph_of(transposed, {"x": OUTLYING_TK}, **square).graph, ["first", "second"]) == {}
    tied = [
        helper.make_node("Gather", ["E", "ids"], ["h"]),
        helper.make_node("Transpose", ["E"], ["E_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "E_t"], ["y"], name="vocabulary"),
    ]
    assert smoothable(graph_of(tied, {"ids": np.arange(5)}, E=WEIGHT_KN).graph, ["vocabulary"]) == {}


def test_the_given_graph_is_not_changed() -> None:
    graph = normalized(has_bias=True)
    before = graph.SerializeToString(deterministic=True)
    eased = smoothed(graph, {"x": np.full(24, 2.0)}, ["product"])
    assert graph.SerializeToString(deterministic=True) == before
    weight = next(tensor for tensor in eased.graph.initializer if tensor.name == "W")
    np.testing.assert_array_equal(numpy_helper.to_array(weight), 2 * WEIGHT_KN)


TEXTS = ["open the list", "return of the file", "list the files"]
OUTLIER = "return"


def seen_of(folder: Path, name: str, change: Callable[[onnx.ModelProto], None] = lambda graph: None) -> Seen:
    graph = onnx.load(folder / FILES.fp32)
    change(graph)
    return measured(graph, [name], folder / FILES.int8, read_manifest(folder), TEXTS)[name]


def reach_of(
    folder: Path, name: str, change: Callable[[onnx.ModelProto], None] = lambda graph: None
) -> ActivationRange:
    return range_of(seen_of(folder, name, change))


@pytest.fixture
def tagger(tiny_package: TinyPackage) -> Path:
    """Tagger whose only product reads rows of a random table, so all tokens have similar ranges."""
    return tiny_package(write_tagger)


def plant_outlier(folder: Path) -> Callable[[onnx.ModelProto], None]:
    """Multiply the row of one word by 200."""
    (row,) = load(folder, precision="fp32").tokenize([OUTLIER])[0].ids_L[1:-1]

    def change(graph: onnx.ModelProto) -> None:
        table = next(tensor for tensor in graph.graph.initializer if tensor.name == "embeddings")
        rows_VH = numpy_helper.to_array(table).copy()
        rows_VH[row] *= 200
        table.CopyFrom(numpy_helper.from_array(rows_VH, "embeddings"))

    return change


def rows_of(tagger: Path) -> np.ndarray:
    """What its product reads [T, H]."""
    table = next(t for t in onnx.load(tagger / FILES.fp32).graph.initializer if t.name == "embeddings")
    ids_T = np.concatenate([text.ids_L for text in load(tagger, precision="fp32").tokenize(TEXTS)])
    rows_TH: np.ndarray = numpy_helper.to_array(table)[ids_T]
    return rows_TH


def test_token_and_channel_ranges_are_measured_over_all_texts(tagger: Path) -> None:
    seen, expected = seen_of(tagger, "embedded_BLH"), seen_in(rows_of(tagger))
    for figure in fields(Seen):
        np.testing.assert_allclose(getattr(seen, figure.name), getattr(expected, figure.name), rtol=1e-5)


def test_the_range_covers_every_token_with_some_headroom(tagger: Path) -> None:
    rows_TH = rows_of(tagger)
    reach = reach_of(tagger, "embedded_BLH")
    assert 1.05 <= reach.high / rows_TH.max() <= 1.12
    assert 1.05 <= reach.low / rows_TH.min() <= 1.12


def test_an_outlier_token_raises_the_ratio(tagger: Path) -> None:
    assert reach_of(tagger, "embedded_BLH").ratio < 2.5
    assert reach_of(tagger, "embedded_BLH", plant_outlier(tagger)).ratio > 50


def test_ranges_of_a_fill_mask_head_are_measured_on_texts_with_masks(tiny_package: TinyPackage) -> None:
    """Texts without a mask would show the head nothing."""
    assert 0 < reach_of(tiny_package(write_encoder), "hidden_MH").ratio < 10


def tokens(*values: tuple[float, float]) -> Seen:
    return seen_in(np.array(values, dtype=np.float32).reshape(-1, 2))


def test_the_ratio_is_the_fixed_step_over_the_step_of_a_typical_token() -> None:
    """A token's own scale is symmetric: values of one sign leave half of it unused, but use all of a fixed scale."""
    assert range_of(tokens((-1, 1), (-1, 1), (-1, 1))).ratio == 1
    assert range_of(tokens((0, 1), (0, 1), (0, 1))).ratio == 0.5
    assert range_of(tokens((-1, 1), (-1, 1), (-1, 9))).ratio == 5


def test_zero_is_in_every_range() -> None:
    reach = range_of(tokens((2, 4), (3, 5)))
    assert reach.low == 0
    assert range_of(tokens((-5, -4), (-3, -2))).high == 0


def test_the_last_bits_of_a_float_change_no_range() -> None:
    """Processors differ in the last bits."""
    values_TK = np.random.default_rng(0).normal(size=(100, 10)).astype(np.float32)
    one, other = (range_of(seen_in(values_TK * factor)) for factor in (1.0, 1.0 + 1e-6))
    assert (one.low, one.high) == (other.low, other.high)


@pytest.mark.parametrize("seen", [tokens(), tokens((0, 0))])
def test_an_unmeasured_activation_has_an_infinite_ratio(seen: Seen) -> None:
    assert range_of(seen) == ActivationRange(0, 0, math.inf)
