"""A graph in 16 bits: results of weights are narrow, except where they would overflow or lose positions.

B texts, L tokens, H hidden, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.in_half import LARGEST, in_half, watched

VOCAB_SIZE, HIDDEN = 3000, 4
RANDOM = np.random.default_rng(0)
TABLE_VH = RANDOM.normal(size=(VOCAB_SIZE, HIDDEN)).astype(np.float32)
CONSTANTS = {
    "table": TABLE_VH,
    "weight": RANDOM.normal(size=(HIDDEN, HIDDEN)).astype(np.float32),
    "bias": RANDOM.normal(size=HIDDEN).astype(np.float32),
    "rate": np.array(0.37, dtype=np.float32),
    "zero": np.array(0, dtype=np.float32),
    "lowest": np.array(np.finfo(np.float32).min, dtype=np.float32),
    "hundred": np.array(100, dtype=np.float32),
    "axis": np.array([1]),
    "last": np.array([-1]),
    "first": np.array(0),
    "rows": np.array([1, 1, 3, 1]),
}


def node(op_type: str, inputs: Sequence[str], output: str, **attributes: object) -> NodeProto:
    return helper.make_node(op_type, inputs, [output], **attributes)


LOOKUP = node("Gather", ["table", "ids"], "x")


def graph(*nodes: NodeProto, opset: int = 17) -> onnx.ModelProto:
    """From `ids` [B, L] to `y`."""
    read = {name for one in nodes for name in one.input}
    made = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "any", HIDDEN])],
        [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items() if name in read],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, ids_BL: np.ndarray, output: str = "y") -> np.ndarray:
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run([output], {"ids": ids_BL})[0]


def types_of(model: onnx.ModelProto) -> dict[str, set[int]]:
    """Return the types of each operator's outputs."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = [*inferred.value_info, *inferred.output]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    found: dict[str, set[int]] = {}
    for one in model.graph.node:
        found.setdefault(one.op_type, set()).update(types[name] for name in one.output)
    return found


IDS = np.array([[5, 2999, 7], [1, 2, 0]])


def test_lookups_and_products_are_float16_and_inputs_and_outputs_float32() -> None:
    model = graph(LOOKUP, node("MatMul", ["x", "weight"], "p"), node("Add", ["p", "bias"], "y"))
    half = in_half(model)
    types = types_of(half)
    assert types["Gather"] == types["MatMul"] == types["Add"] == {TensorProto.FLOAT16}
    assert {tensor.data_type for tensor in half.graph.initializer} == {TensorProto.FLOAT16}
    assert run(half, IDS).dtype == np.float32
    difference = np.abs(run(half, IDS) - run(model, IDS)).max()
    assert 0 < difference < 0.02
    assert {tensor.data_type for tensor in model.graph.initializer} == {TensorProto.FLOAT}


def test_a_position_late_in_a_text_keeps_its_exact_rotary_angle() -> None:
    model = graph(
        LOOKUP,
        node("Cast", ["ids"], "places", to=TensorProto.FLOAT),
        node("Mul", ["places", "rate"], "angles"),
        node("Cos", ["angles"], "cosines"),
        node("Unsqueeze", ["cosines", "last"], "cosines_BL1"),
        node("Mul", ["x", "cosines_BL1"], "y"),
    )
    half = in_half(model)
    assert types_of(half)["Cos"] == {TensorProto.FLOAT}
    assert TensorProto.FLOAT16 in types_of(half)["Mul"]
    ids_1L = np.arange(VOCAB_SIZE)[None]
    np.testing.assert_allclose(run(half, ids_1L), run(model, ids_1L), atol=0.01)


def test_an_all_masked_row_gives_no_nan() -> None:
    model = graph(
        LOOKUP,
        node("Mul", ["x", "hundred"], "scores"),
        node("Greater", ["ids", "first"], "is_real"),
        node("Where", ["is_real", "zero", "lowest"], "mask"),
        node("Unsqueeze", ["mask", "last"], "mask_BL1"),
        node("Add", ["scores", "mask_BL1"], "masked"),
        node("Softmax", ["masked"], "y", axis=1),
    )
    found, expected = run(in_half(model), np.zeros((1, 3), dtype=np.int64)), run(model, IDS)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(run(in_half(model), IDS), expected, atol=0.2)
    assert (run(in_half(model), IDS)[1, 2] == 0).all()


def test_the_sum_over_a_long_text_does_not_overflow() -> None:
    model = graph(
        LOOKUP,
        node("Abs", ["x"], "positive"),
        node("Mul", ["positive", "hundred"], "large"),
        node("ReduceSum", ["large", "axis"], "sum", keepdims=1),
        node("ReduceL2", ["sum"], "norm", axes=[2], keepdims=1),
        node("Div", ["sum", "norm"], "y"),
    )
    # A CPU may compute float16 nodes in float32, so the test checks the types.
    types = types_of(in_half(model))
    assert types["ReduceSum"] == types["ReduceL2"] == types["Div"] == {TensorProto.FLOAT}
    ids_1L = np.arange(2000)[None]
    np.testing.assert_allclose(run(in_half(model), ids_1L), run(model, ids_1L), atol=1e-3)


def test_a_division_by_a_constant_runs_in_float16() -> None:
    assert types_of(in_half(graph(LOOKUP, node("Div", ["x", "hundred"], "y"))))["Div"] == {TensorProto.FLOAT16}


@pytest.mark.parametrize("factor", ["hundred", "rate"])
def test_the_largest_value_is_taken_over_all_float16_tensors(factor: str) -> None:
    model = graph(LOOKUP, node("Neg", ["x"], "n"), node("Mul", ["n", factor], "m"), node("Tanh", ["m"], "y"))
    largest = np.abs(TABLE_VH[IDS]).max() * max(1, CONSTANTS[factor])
    assert run(watched(model), IDS, LARGEST) == pytest.approx(largest, rel=1e-5)
    np.testing.assert_array_equal(run(watched(model), IDS), run(model, IDS))


def test_fp16_range_check_covers_scores_inside_the_attention_operator() -> None:
    model = graph(
        LOOKUP,
        node("Mul", ["x", "hundred"], "large"),
        helper.make_node("Attention", ["large"] * 3, ["y"], name="attention", q_num_heads=1, kv_num_heads=1, scale=1.0),
        opset=23,
    )
    assert types_of(in_half(model))["Attention"] == {TensorProto.FLOAT16}
    large_BLH = 100 * TABLE_VH[IDS]
    scores_BLL = large_BLH @ large_BLH.transpose(0, 2, 1)
    assert run(watched(model), IDS, LARGEST) == pytest.approx(np.abs(scores_BLL).max(), rel=1e-5)


def test_fp16_range_check_ignores_a_boolean_mask() -> None:
    """ONNX Runtime fills masked positions with the least float32, or the least float16 if it computes in float16."""
    parts = {"q_num_heads": 1, "kv_num_heads": 1, "scale": 1.0}
    model = graph(
        LOOKUP,
        node("Greater", ["ids", "first"], "is_real"),
        node("Unsqueeze", ["is_real", "axis"], "is_real_B1L"),
        node("Unsqueeze", ["is_real_B1L", "axis"], "mask"),
        node("Expand", ["mask", "rows"], "rows_of_mask"),
        helper.make_node("Attention", ["x", "x", "x", "rows_of_mask"], ["y"], name="attention", **parts),
        opset=23,
    )
    x_BLH = TABLE_VH[IDS]
    largest = max(np.abs(x_BLH @ x_BLH.transpose(0, 2, 1)).max(), np.abs(x_BLH).max())
    assert run(watched(model), IDS, LARGEST) == pytest.approx(largest, rel=1e-5)
