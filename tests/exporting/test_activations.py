"""Activations with a fixed scale: one pass, one operator, and no token changes another token's answer.

K inputs and N outputs of a linear layer, T tokens.
"""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from clozeline.exporting.graph import op_counts
from clozeline.exporting.quantization import PRODUCT, Scheme, quantize, scale_of
from clozeline.exporting.ranges import ActivationRange, range_of
from tests.exporting.test_quantization import (
    ACTIVATION_TK,
    DEFAULT,
    TABLE_VH,
    UNSIGNED,
    WEIGHT_KN,
    answer,
    graph_of,
    linear,
    tied,
)
from tests.exporting.test_ranges import seen_in

BIAS_N = np.arange(16, dtype=np.float32)
REACH = range_of(seen_in(ACTIVATION_TK))
RANGES = {"x": REACH}
BIASED = [helper.make_node("MatMul", ["x", "W"], ["p"]), helper.make_node("Add", ["bias", "p"], ["y"])]


@pytest.mark.parametrize("scheme", [DEFAULT, UNSIGNED])
def test_a_fixed_scale_is_near_fp32_but_not_fp32(scheme: Scheme) -> None:
    exact = ACTIVATION_TK @ WEIGHT_KN
    quantized = quantize(linear(), scheme, ranges=RANGES)
    error = np.abs(answer(quantized.model, {"x": ACTIVATION_TK}) - exact).max()
    assert 0 < error < 0.03 * np.abs(exact).max()
    assert (quantized.num_activations, dict(quantized.static)) == (1, RANGES)


def test_the_answer_for_a_token_does_not_depend_on_other_tokens() -> None:
    beside = np.concatenate([ACTIVATION_TK, 1000 * ACTIVATION_TK[:1]])
    model = quantize(linear(), DEFAULT, ranges=RANGES).model
    np.testing.assert_array_equal(answer(model, {"x": beside})[:5], answer(model, {"x": ACTIVATION_TK}))


def test_activations_outside_their_range_are_clipped() -> None:
    model = quantize(linear(), DEFAULT, ranges=RANGES).model
    far, ends = (np.full((2, 24), [[low], [high]], np.float32) for low, high in ((-1e9, 1e9), (REACH.low, REACH.high)))
    np.testing.assert_array_equal(answer(model, {"x": far}), answer(model, {"x": ends}))


@pytest.mark.parametrize("low", [-3.0, -0.17, 0.0])
def test_zero_is_exact_and_both_ends_are_within_half_a_step(low: float) -> None:
    scale, zero_point = scale_of(ActivationRange(low, 4.0, 1.0))
    assert 0 <= zero_point <= 255
    assert abs(-zero_point * scale - low) <= 0.51 * scale
    assert abs((255 - zero_point) * scale - 4.0) <= 0.51 * scale
    zeros = np.zeros((3, 24), np.float32)
    assert not answer(
        quantize(linear(), DEFAULT, ranges={"x": ActivationRange(low, 4.0, 1.0)}).model, {"x": zeros}
    ).any()


def test_a_range_of_width_0_does_not_divide_by_zero() -> None:
    model = quantize(linear(), DEFAULT, ranges={"x": ActivationRange(0.0, 0.0, 1.0)}).model
    assert not answer(model, {"x": np.zeros((2, 24), np.float32)}).any()


def test_a_fixed_scale_leaves_one_quantization_and_one_product() -> None:
    model = graph_of(BIASED, {"x": ACTIVATION_TK}, W=WEIGHT_KN, bias=BIAS_N)
    quantized = quantize(model, DEFAULT, ranges=RANGES).model
    assert op_counts(quantized) == {"QuantizeLinear": 1, PRODUCT: 1}
    given = answer(quantized, {"x": ACTIVATION_TK})
    exact = ACTIVATION_TK @ WEIGHT_KN
    np.testing.assert_allclose(given - BIAS_N, exact, atol=0.03 * np.abs(exact).max())


def test_an_activation_read_by_two_layers_is_quantized_once() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["a"]),
        helper.make_node("MatMul", ["x", "U"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    quantized = quantize(graph_of(nodes, {"x": ACTIVATION_TK}, W=WEIGHT_KN, U=-WEIGHT_KN), DEFAULT, ranges=RANGES)
    assert op_counts(quantized.model) == {"QuantizeLinear": 1, PRODUCT: 2, "Add": 1}
    assert quantized.num_activations == 1


def test_activations_without_a_range_keep_a_scale_for_each_token() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["a"]),
        helper.make_node("MatMul", ["a", "U"], ["y"]),
    ]
    model = graph_of(nodes, {"x": ACTIVATION_TK}, W=WEIGHT_KN, U=WEIGHT_KN.T.copy())
    quantized = quantize(model, DEFAULT, ranges=RANGES | {"of another graph": REACH})
    assert (quantized.num_activations, list(quantized.static)) == (2, ["x"])
    counts = op_counts(quantized.model)
    assert (counts["QuantizeLinear"], counts["ReduceMax"]) == (2, 1)
    beside = np.concatenate([ACTIVATION_TK, 1000 * ACTIVATION_TK[:1]])
    np.testing.assert_array_equal(
        answer(quantized.model, {"x": beside})[:5], answer(quantized.model, {"x": ACTIVATION_TK})
    )


def test_the_output_projection_also_uses_a_fixed_scale() -> None:
    reach = range_of(seen_in(TABLE_VH))
    quantized = quantize(tied(), DEFAULT, ranges={"h": reach}).model
    ids = np.array([3, 0, 39])
    exact = TABLE_VH[ids] @ TABLE_VH.T
    np.testing.assert_allclose(answer(quantized, {"ids": ids}), exact, atol=0.03 * np.abs(exact).max())


def test_an_empty_batch_gives_an_empty_result() -> None:
    model = quantize(linear(), DEFAULT, ranges=RANGES).model
    assert answer(model, {"x": np.zeros((0, 24), np.float32)}).shape == (0, 16)


@pytest.mark.parametrize("weights", ["int7", "uint8"])
def test_no_integer_product_saturates(weights: str) -> None:
    """Every weight and every activation at its limit."""
    feeds = {"x": np.full((4, 24), 9, dtype=np.float32)}
    model = graph_of([helper.make_node("MatMul", ["x", "W"], ["y"])], feeds, W=np.ones((24, 16), dtype=np.float32))
    scheme = replace(DEFAULT, weights=weights)
    quantized = quantize(model, scheme, ranges={"x": ActivationRange(0.0, 9.0, 1.0)}).model
    np.testing.assert_array_equal(answer(quantized, feeds), answer(quantized, feeds, widened=True))
    np.testing.assert_allclose(answer(quantized, feeds), 9 * 24, rtol=0.01)
