"""The likeliest tokens of each mask, found in the graph itself: what a caller gets is a few numbers, not a vocabulary.

M masks in all texts together, V vocabulary, K tokens that are named.
"""

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from clozeline.inference.encoder import TOP_IDS, TOP_SCORES

MOST = 100
"""K of a vocabulary that has as many: nobody can ask a server for more."""


def num_likeliest(vocab_size: int) -> int:
    """K."""
    return min(MOST, vocab_size)


def add_likeliest(model: ModelProto, vocab_size: int) -> None:
    """Give `model` two more outputs, made of its `logits` [M, V]: `top_ids` and `top_scores` [M, K].

    Of each mask the likeliest tokens, best first (of equal ones the lower id), and what softmax over the whole
    vocabulary makes of them. Both are there whatever is asked: ONNX Runtime computes every output (onnxruntime #16013).
    """
    most = num_likeliest(vocab_size)
    graph = model.graph
    for name, number in (("zero", 0), ("one", 1), ("most", most)):
        graph.initializer.append(numpy_helper.from_array(np.array([number], dtype=np.int64), f"top/{name}"))
    graph.node.extend(
        [
            _node("Shape", ["logits"], "top/shape_of_logits"),
            _node("Slice", ["top/shape_of_logits", "top/zero", "top/one"], "top/num_masks"),
            # ONNX Runtime's TopK divides by the number of its rows. Where there is no mask, it is to find nothing.
            _node("Mul", ["top/num_masks", "top/most"], "top/of_all_masks"),
            _node("Min", ["top/of_all_masks", "top/most"], "top/k"),
            helper.make_node("TopK", ["logits", "top/k"], ["top/logits", "top/places"], name="top/places", axis=-1),
            _node("Softmax", ["logits"], "top/probabilities", axis=-1),
            _node("GatherElements", ["top/probabilities", "top/places"], "top/found", axis=1),
            _node("Concat", ["top/num_masks", "top/most"], "top/shape", axis=0),
            _node("Reshape", ["top/places", "top/shape"], TOP_IDS, allowzero=1),
            _node("Reshape", ["top/found", "top/shape"], TOP_SCORES, allowzero=1),
        ]
    )
    graph.output.extend(
        helper.make_tensor_value_info(name, kind, ["masks", most])
        for name, kind in ((TOP_IDS, TensorProto.INT64), (TOP_SCORES, TensorProto.FLOAT))
    )


def _node(operator: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(operator, inputs, [output], name=output, **attributes)
