"""Attention as one operator: the same answers, however scores are scaled and masked; and what is not understood stays.

B texts, Q queries, K keys, A heads, D dimensions of a head, H = A × D.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.attention import ATTENTION, fuse_attention, show_scores
from clozeline.exporting.biases import biases
from clozeline.exporting.graph import drop_unread, op_counts

NUM_HEADS, HEAD_SIZE = 3, 8
HIDDEN = NUM_HEADS * HEAD_SIZE
RANDOM = np.random.default_rng(0)
LOWEST = np.float32(np.finfo(np.float32).min)
CONSTANTS: Mapping[str, Any] = {
    **{f"weight_{name}": RANDOM.normal(size=(HIDDEN, HIDDEN)).astype(np.float32) / 5 for name in "qkvo"},
    "bias": RANDOM.normal(size=HIDDEN).astype(np.float32),
    "wave": RANDOM.normal(size=HEAD_SIZE).astype(np.float32),
    "one_each": np.float32([1.0]),
    "one_float": np.float32(1.0),
    "lowest": LOWEST,
    "size": np.int64([HEAD_SIZE]),
    "root": np.float32(np.sqrt(HEAD_SIZE)),
    "zero": np.float32(0),
    **{f"n{number}": np.int64([number]) for number in (-1, 0, 1, 2, NUM_HEADS, HEAD_SIZE, HIDDEN)},
    "first": np.int64(0),
    "second": np.int64(1),
}
SHAPES = [(1, 1), (1, 7), (3, 5), (4, 33)]
"""Of the texts that are asked: B and K."""


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], name=f"/layer/{output}", **attributes)


def product(name: str, source: str = "x") -> list[NodeProto]:
    return [node("MatMul", f"{source} weight_{name}", f"{name}_product"), node("Add", f"bias {name}_product", name)]


def asked(name: str, axis: str, size: str) -> list[NodeProto]:
    """One size of a tensor, as the exporter asks for it."""
    return [
        node("Shape", name, f"{size}_shape"),
        node("Gather", f"{size}_shape {axis}", f"{size}_asked", axis=0),
        node("Unsqueeze", f"{size}_asked n0", size),
    ]


def apart(name: str, *, perm: Sequence[int] = (0, 2, 1, 3)) -> list[NodeProto]:
    """`name_heads` [B, A, X, D], or in the order of `perm`."""
    return [
        *asked(name, "first", f"{name}_texts"),
        node("Concat", f"{name}_texts n-1 n{NUM_HEADS} n{HEAD_SIZE}", f"{name}_sizes", axis=0),
        node("Reshape", f"{name} {name}_sizes", f"{name}_parted"),
        node("Transpose", f"{name}_parted", f"{name}_heads", perm=list(perm)),
    ]


def together(output: str = "y") -> list[NodeProto]:
    return [
        node("Transpose", "context", "swapped", perm=[0, 2, 1, 3]),
        *asked("swapped", "first", "texts"),
        *asked("swapped", "second", "queries"),
        node("Concat", f"texts queries n{HIDDEN}", "joined_sizes", axis=0),
        node("Reshape", "swapped joined_sizes", "joined"),
        node("MatMul", "joined weight_o", output),
    ]


ROOT_OF_SCALE = [
    node("Cast", "size", "size_float", to=TensorProto.FLOAT),
    node("Sqrt", "size_float", "root_of_size"),
    node("Div", "one_each root_of_size", "scale"),
    node("Cast", "scale", "scale_again", to=TensorProto.FLOAT),
    node("Sqrt", "scale_again", "root_of_scale"),
    node("Mul", "q_heads root_of_scale", "q_scaled"),
    node("Mul", "root_of_scale k_heads", "k_scaled"),
    node("MatMul", "q_scaled k_scaled", "scores"),
]
SCALES: Mapping[str, tuple[list[NodeProto], float]] = {
    "none": ([node("MatMul", "q_heads k_heads", "scores")], 1.0),
    "roots on both factors": (ROOT_OF_SCALE, HEAD_SIZE**-0.5),
    "scores divided": (
        [node("MatMul", "q_heads k_heads", "raw"), node("Div", "raw root", "scores")],
        HEAD_SIZE**-0.5,
    ),
    "queries multiplied, scores too": (
        [
            node("Mul", "q_heads root", "q_scaled"),
            node("MatMul", "q_scaled k_heads", "raw"),
            node("Mul", "raw root", "scores"),
        ],
        float(HEAD_SIZE),
    ),
}
PADDING = [
    node("Unsqueeze", "attention_mask n1", "mask_B1K"),
    node("Unsqueeze", "mask_B1K n2", "mask_B11K"),
    node("Cast", "mask_B11K", "mask_float", to=TensorProto.FLOAT),
    node("Sub", "one_float mask_float", "is_padding"),
    node("Mul", "is_padding lowest", "mask"),
]
MASKED = [node("Add", "scores mask", "masked"), node("Softmax", "masked", "Softmax_1", axis=-1)]
VALUES = [node("MatMul", "Softmax_1 v_heads", "context")]
PROJECTED = [*product("q"), *product("k"), *product("v")]
PARTED = [*apart("q"), *apart("k", perm=(0, 2, 3, 1)), *apart("v")]
SCALED = SCALES["roots on both factors"][0]


def graph(*nodes: NodeProto, opset: int = 23) -> ModelProto:
    """From `x` [B, K, H] and `attention_mask` [B, K] to `y`, of [B, Q, H]."""
    read = {name for one in nodes for name in one.input}
    made = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", HIDDEN]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "length"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "queries", HIDDEN])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items() if name in read],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: ModelProto, num_texts: int, length: int, *outputs: str) -> list[np.ndarray]:
    """Of texts of the whole length down to one token: all but the longest are padded."""
    random = np.random.default_rng(num_texts)
    lengths_B = np.linspace(length, 1, num_texts).round()
    inputs = {
        "x": random.normal(size=(num_texts, length, HIDDEN)).astype(np.float32),
        "attention_mask": (np.arange(length) < lengths_B[:, None]).astype(np.int64),
    }
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    read = {value.name for value in session.get_inputs()}
    return session.run(outputs or ["y"], {name: value for name, value in inputs.items() if name in read})


def fused(model: ModelProto) -> ModelProto:
    """A copy, which gives the same answers."""
    copy = ModelProto()
    copy.CopyFrom(model)
    fuse_attention(copy)
    onnx.checker.check_model(copy, full_check=True)
    for shape in SHAPES:
        np.testing.assert_allclose(run(copy, *shape)[0], run(model, *shape)[0], atol=1e-5)
    return copy


def attentions(model: ModelProto) -> list[NodeProto]:
    return [one for one in model.graph.node if one.op_type == ATTENTION]


def attributes(one: NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in one.attribute}


BLOCK = (*PADDING, *PROJECTED, *PARTED, *SCALED, *MASKED, *VALUES, *together())


def test_a_block_is_one_node_that_reads_the_products_as_they_are() -> None:
    model = fused(graph(*BLOCK))
    (one,) = attentions(model)
    assert list(one.input[:3]) == ["q", "k", "v"]
    assert list(one.output) == ["joined"]
    assert one.name == "/layer/Attention_1"
    counts = op_counts(model)
    assert counts["MatMul"] == 4
    assert not {"Transpose", "Reshape", "Softmax", "Gather", "Sqrt"} & counts.keys()


def test_a_size_that_is_asked_of_what_is_gone_is_asked_of_what_is_there() -> None:
    """Sizes are settled before: another layer may read it."""
    read = [node("Cast", "queries_asked", "number", to=TensorProto.FLOAT), node("Div", "of_all number", "y")]
    model = fused(graph(*BLOCK[: -len(together())], *together("of_all"), *read))
    assert len(attentions(model)) == 1
    assert "Softmax" not in op_counts(model)


@pytest.mark.parametrize("scale", SCALES)
def test_the_scale_is_the_product_of_all_that_scores_are_multiplied_by(scale: str) -> None:
    nodes, expected = SCALES[scale]
    model = fused(graph(*PADDING, *PROJECTED, *PARTED, *nodes, *MASKED, *VALUES, *together()))
    (one,) = attentions(model)
    assert attributes(one)["scale"] == pytest.approx(expected)


def test_a_mask_is_added_to_scores_or_scores_to_it() -> None:
    masked = [node("Add", "mask scores", "masked"), MASKED[1]]
    (one,) = attentions(fused(graph(*PADDING, *PROJECTED, *PARTED, *SCALED, *masked, *VALUES, *together())))
    assert len(one.input) == 4


def test_a_block_without_a_mask_has_none() -> None:
    nodes = [node("Softmax", "scores", "Softmax_1", axis=-1), *VALUES, *together()]
    (one,) = attentions(fused(graph(*PROJECTED, *PARTED, *SCALED, *nodes)))
    assert list(one.input) == ["q", "k", "v"]


WAVED = [
    *(*apart("q"), *apart("k"), *apart("v")),
    node("Mul", "q_heads wave", "q_waved"),
    node("Mul", "k_heads wave", "k_waved"),
    node("Transpose", "k_waved", "k_turned", perm=[0, 1, 3, 2]),
    node("MatMul", "q_waved k_turned", "scores"),
]


def test_what_lies_between_heads_and_products_stays_there() -> None:
    """As rotary positions do; keys are transposed after it."""
    model = fused(graph(*PADDING, *PROJECTED, *WAVED, *MASKED, *VALUES, *together()))
    (one,) = attentions(model)
    assert list(one.input[:3]) == ["q_waved", "k_waved", "v_heads"]
    assert list(one.output) == ["context"]
    assert not {"q_num_heads", "kv_num_heads"} & attributes(one).keys()


def layer_of_some(num_queries: int, factors: Sequence[NodeProto]) -> list[NodeProto]:
    """After `y_all`, hidden states of all: a layer whose queries are those of the first positions alone."""
    first = [node("Slice", f"y_all n0 n{num_queries} n1", "x_first"), *product("q", "x_first")]
    keys = [*product("k", "y_all"), *product("v", "y_all")]
    return [*first, *keys, *factors, *MASKED, *VALUES, *together()]


def second(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """The same nodes in another layer: every tensor that they make has another name."""
    made = {name for one in nodes for name in one.output} - {"y"}
    names = {name: f"{name}_of_second" for name in made}
    copies = []
    for one in nodes:
        inputs, outputs = ([names.get(name, name) for name in side] for side in (one.input, one.output))
        copy = helper.make_node(one.op_type, inputs, outputs, name=f"/second{one.name}")
        copy.attribute.extend(one.attribute)
        copies.append(copy)
    return copies


FIRST_LAYER = (*PROJECTED, *PARTED, *SCALED, *MASKED, *VALUES, *together("y_all"))


@pytest.mark.parametrize("num_queries", [1, 2])
@pytest.mark.parametrize("factors", [(*PARTED, *SCALED), WAVED], ids=["together", "apart"])
def test_a_last_layer_of_fewer_queries_has_a_mask_of_its_own(factors: Sequence[NodeProto], num_queries: int) -> None:
    model = fused(graph(*PADDING, *FIRST_LAYER, *second(layer_of_some(num_queries, factors))))
    assert len(attentions(model)) == 2
    assert op_counts(model)["Expand"] == 2
    assert len({one.input[3] for one in attentions(model)}) == 2


def test_layers_of_all_positions_read_one_mask() -> None:
    again = [*product("q", "y_all"), *product("k", "y_all"), *product("v", "y_all")]
    nodes = second([*again, *PARTED, *SCALED, *MASKED, *VALUES, *together()])
    model = fused(graph(*PADDING, *FIRST_LAYER, *nodes))
    assert len(attentions(model)) == 2
    assert op_counts(model)["Expand"] == 1
    assert [one.name for one in attentions(model)] == ["/layer/Attention_1", "/second/layer/Attention_1"]


def test_a_mask_can_say_something_else_to_each_query_and_head() -> None:
    """As distances do: `mask` [B, A, K, K]."""
    far = [
        node("MatMul", "q_heads k_heads", "far"),
        node("Mul", "far far", "mask"),
    ]
    model = fused(graph(*PROJECTED, *PARTED, *SCALED, *far, *MASKED, *VALUES, *together()))
    assert len(attentions(model)) == 1


IN_PIECES = {
    f"{name}_sizes": node("Concat", f"n-1 n1 n{NUM_HEADS} n{HEAD_SIZE}", f"{name}_sizes", axis=0) for name in "qkv"
}
UNLIKE: Mapping[str, Sequence[NodeProto]] = {
    "softmax over queries": (
        *(*PADDING, *PROJECTED, *PARTED, *SCALED),
        *(MASKED[0], node("Softmax", "masked", "Softmax_1", axis=2), *VALUES, *together()),
    ),
    "a sum of two products, scaled": (
        *(*PADDING, *PROJECTED, *PARTED),
        node("MatMul", "q_heads k_heads", "content"),
        node("MatMul", "v_heads k_heads", "place"),
        node("Add", "content place", "raw"),
        node("Div", "raw root", "scores"),
        *(*MASKED, *VALUES, *together()),
    ),
    "rows of padding put to zero after softmax": (
        *(*PADDING, *PROJECTED, *PARTED, *SCALED, *MASKED),
        node("IsNaN", "Softmax_1", "is_nothing"),
        node("Where", "is_nothing zero Softmax_1", "weights"),
        *(node("MatMul", "weights v_heads", "context"), *together()),
    ),
    "a mask of fewer axes": (
        *(*PADDING[:1], *PROJECTED, *PARTED, *SCALED),
        node("Squeeze", "mask_B1K n1", "mask_BK"),
        node("Cast", "mask_BK", "mask_float", to=TensorProto.FLOAT),
        node("ReduceSum", "mask_float", "mask", keepdims=0),
        *(*MASKED, *VALUES, *together()),
    ),
    "texts in pieces": (
        *(*PROJECTED, *(IN_PIECES.get(one.output[0], one) for one in PARTED), *SCALED),
        *(node("Softmax", "scores", "Softmax_1", axis=-1), *VALUES, *together()[:1]),
        *(*asked("x", "first", "texts"), node("Concat", f"texts n-1 n{HIDDEN}", "joined_sizes", axis=0)),
        *together()[-2:],
    ),
    "one head of values for all": (
        *(*PADDING, *PROJECTED, *WAVED, *MASKED, node("Slice", "v_heads n0 n1 n1", "v_head")),
        *(node("MatMul", "Softmax_1 v_head", "context"), *together()),
    ),
    "heads that are read apart too": (
        *(*BLOCK[: -len(together())], *together("of_all")),
        *(node("ReduceMax", "swapped", "largest", keepdims=0), node("Add", "of_all largest", "y")),
    ),
    "heads that come out in their own order": (
        *(*PADDING, *PROJECTED, *PARTED, *SCALED, *MASKED, *VALUES),
        *(node("Transpose", "context", "swapped", perm=[0, 2, 3, 1]), *asked("x", "first", "texts")),
        *(node("Concat", f"texts n-1 n{HIDDEN}", "joined_sizes", axis=0), *together()[-2:]),
    ),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_what_is_not_understood_stays_as_it_is(kind: str) -> None:
    model = graph(*UNLIKE[kind])
    drop_unread(model.graph)
    assert fused(model).SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_an_opset_without_the_operator_keeps_its_nodes() -> None:
    model = graph(*BLOCK, opset=22)
    assert fused(model).SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_the_same_graph_gives_the_same_bytes() -> None:
    model = graph(*BLOCK)
    assert fused(model).SerializeToString(deterministic=True) == fused(model).SerializeToString(deterministic=True)


def test_biases_of_queries_keys_and_values_are_still_of_their_products_alone() -> None:
    assert set(biases(fused(graph(*BLOCK)).graph)) == {"q_product", "k_product", "v_product"}


def test_a_text_of_nothing_but_padding_gives_no_nan() -> None:
    """And nothing else that could be read: its queries have no key."""
    model = graph(*BLOCK)
    fuse_attention(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = {"x": np.ones((2, 5, HIDDEN), np.float32), "attention_mask": np.zeros((2, 5), np.int64)}
    assert np.isfinite(session.run(["y"], inputs)[0]).all()


def test_masked_scores_are_shown_if_asked_for() -> None:
    model = fused(graph(*BLOCK))
    show_scores(model.graph, "{}/scores")
    model.graph.output.append(onnx.ValueInfoProto(name="/layer/Attention_1/scores"))
    before = graph(*BLOCK)
    before.graph.output.append(onnx.ValueInfoProto(name="masked"))
    (shown,), (masked,) = run(model, 3, 5, "/layer/Attention_1/scores"), run(before, 3, 5, "masked")
    assert masked.min() == LOWEST
    np.testing.assert_allclose(shown, masked, rtol=1e-5, atol=1e-5)
