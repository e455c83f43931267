"""Attention as exported, before and after rewriting: same answers, no transpositions, one mask row for each query.

B texts, Q queries, K keys, A heads, D dimensions of a head, H = A × D.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.attention import ATTENTION, settle_attention
from clozeline.exporting.graph import drop_unread, op_counts

NUM_HEADS, HEAD_SIZE = 3, 8
HIDDEN = NUM_HEADS * HEAD_SIZE
NAMES = ("query", "key", "value")
PARTED = np.array([0, 0, NUM_HEADS, HEAD_SIZE], dtype=np.int64)
JOINED = np.array([0, 0, HIDDEN], dtype=np.int64)


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], name=output, **attributes)


def apart(name: str, *, is_turned: bool) -> list[NodeProto]:
    """`name_heads` [B, A, X, D]; turned ones are multiplied in between, as by rotary positions."""
    between = [node("Mul", f"{name}_parted wave", f"{name}_turned")] if is_turned else []
    last = f"{name}_turned" if is_turned else f"{name}_parted"
    swap = node("Transpose", last, f"{name}_heads", perm=[0, 2, 1, 3])
    return [node("Reshape", f"{name} parted", f"{name}_parted"), *between, swap]


def attention(name: str, mask: str, query: str = "query") -> NodeProto:
    return node(ATTENTION, f"{query}_heads key_heads value_heads {mask}", name, is_causal=0, qk_matmul_output_mode=0)


TOGETHER = [node("Transpose", "context", "swapped", perm=[0, 2, 1, 3]), node("Reshape", "swapped joined", "y")]


def graph(*nodes: NodeProto, mask: Sequence[str | int] = ("texts", 1, "queries", "keys")) -> ModelProto:
    """From `query` [B, Q, H], `key` and `value` [B, K, H] and `mask`, true where queries may look, to `y` [B, Q, H]."""
    axes = (["texts", "queries", HIDDEN], ["texts", "keys", HIDDEN], ["texts", "keys", HIDDEN])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, it) for name, it in zip(NAMES, axes, strict=True)]
    wave = np.random.default_rng(0).normal(size=HEAD_SIZE).astype(np.float32)
    made = helper.make_graph(
        nodes,
        "test",
        [*values, helper.make_tensor_value_info("mask", TensorProto.BOOL, mask)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["texts", "queries", HIDDEN])],
        [numpy_helper.from_array(it, name) for name, it in (("parted", PARTED), ("joined", JOINED), ("wave", wave))],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def block(*, is_turned: bool = False, **sizes: Any) -> ModelProto:
    parts = [part for name in NAMES for part in apart(name, is_turned=is_turned and name != "value")]
    return graph(*parts, attention("context", "mask"), *TOGETHER, **sizes)


def settled(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    settle_attention(copy)
    return copy


def run(model: ModelProto, num_texts: int, queries: int, keys: int, rows: int, output: str = "y") -> np.ndarray:
    random = np.random.default_rng(num_texts)
    inputs = {
        name: random.normal(size=(num_texts, length, HIDDEN)).astype(np.float32)
        for name, length in zip(NAMES, (queries, keys, keys), strict=True)
    }
    mask = np.broadcast_to(random.random((num_texts, 1, 1, keys)) < 0.7, (num_texts, 1, rows, keys)).copy()
    mask[..., 0] = True
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given: np.ndarray = session.run([output], inputs | {"mask": mask})[0]
    return given


SHAPES = [(1, 1, 1), (1, 1, 7), (3, 5, 5), (4, 2, 33)]


@pytest.mark.parametrize("is_turned", [False, True])
def test_attention_without_transposes_gives_the_same_output(is_turned: bool) -> None:
    before = block(is_turned=is_turned)
    after = settled(before)
    assert op_counts(before)["Transpose"] == 4
    assert op_counts(after)["Transpose"] == 0
    for texts, queries, keys in SHAPES:
        shape = (texts, queries, keys, queries)
        np.testing.assert_allclose(run(after, *shape), run(before, *shape), rtol=1e-5, atol=1e-6)


def test_a_one_row_mask_is_expanded_to_a_row_per_query() -> None:
    after = settled(block(mask=("texts", 1, 1, "keys")))
    assert op_counts(after)["Expand"] == 1
    for texts, queries, keys in SHAPES:
        expected = run(block(), texts, queries, keys, queries)
        np.testing.assert_allclose(run(after, texts, queries, keys, 1), expected, rtol=1e-5, atol=1e-6)


def test_layers_with_equally_many_queries_share_the_expanded_mask() -> None:
    parts = [part for name in NAMES for part in apart(name, is_turned=False)]
    swap = node("Transpose", "second", "second_swapped", perm=[0, 2, 1, 3])
    again = [node("Reshape", "swapped joined", "first_joined"), swap, node("Reshape", "second_swapped joined", "other")]
    two = [attention("context", "mask"), attention("second", "mask"), TOGETHER[0], *again]
    model = graph(*parts, *two, node("Add", "first_joined other", "y"), mask=("texts", 1, 1, "keys"))
    assert op_counts(settled(model))[ATTENTION] == 2
    assert op_counts(settled(model))["Expand"] == 1


def test_layers_with_different_numbers_of_queries_have_separate_expanded_masks() -> None:
    """As the last layer has, where it is computed at few positions."""
    parts = [part for name in NAMES for part in apart(name, is_turned=False)]
    swap = node("Transpose", "second", "second_swapped", perm=[0, 2, 1, 3])
    again = [node("Reshape", "swapped joined", "first_joined"), swap, node("Reshape", "second_swapped joined", "other")]
    two = [attention("context", "mask"), attention("second", "mask", query="key"), TOGETHER[0], *again]
    added = [node("ReduceMean", "other", "mean"), node("Add", "first_joined mean", "y")]
    after = settled(graph(*parts, *two, *added, mask=("texts", 1, 1, "keys")))
    assert op_counts(after)["Expand"] == 2
    for texts, queries, keys in SHAPES:
        assert np.isfinite(run(after, texts, queries, keys, 1)).all()


def test_a_mask_with_a_row_per_query_is_not_expanded() -> None:
    assert op_counts(settled(block()))["Expand"] == 0


@pytest.mark.parametrize("what", ["read apart too", "swapped in another way"])
def test_heads_with_other_readers_keep_their_layout(what: str) -> None:
    parts = [part for name in NAMES for part in apart(name, is_turned=False)]
    end = [*TOGETHER[:1], node("Reshape", "swapped joined", "rows"), node("ReduceMax", "context", "most", keepdims=0)]
    if what == "swapped in another way":
        end = [node("Transpose", "context", "swapped", perm=[0, 2, 3, 1]), node("Reshape", "swapped joined", "rows")]
        end.append(node("ReduceMin", "swapped", "most", keepdims=0))
    model = graph(*parts, attention("context", "mask"), *end, node("Add", "rows most", "y"))
    drop_unread(model.graph)
    assert settled(model).SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_an_all_padding_text_gives_no_nan() -> None:
    model = settled(block())
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = {name: np.ones((2, 5, HIDDEN), np.float32) for name in NAMES}
    assert np.isfinite(session.run(["y"], inputs | {"mask": np.zeros((2, 1, 5, 5), np.bool_)})[0]).all()
