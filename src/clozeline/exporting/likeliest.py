"""The likeliest tokens of each mask, found in the graph itself: what a caller gets is a few numbers, not a vocabulary.

M masks in all texts together, V vocabulary, K tokens that are named.
"""

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

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
    graph.initializer.append(numpy_helper.from_array(np.array([most], dtype=np.int64), "top/most"))
    graph.node.extend(
        [
            helper.make_node("TopK", ["logits", "top/most"], ["top/logits", TOP_IDS], name=TOP_IDS, axis=-1),
            helper.make_node("Softmax", ["logits"], ["top/probabilities"], name="top/probabilities", axis=-1),
            helper.make_node("GatherElements", ["top/probabilities", TOP_IDS], [TOP_SCORES], name=TOP_SCORES, axis=1),
        ]
    )
    graph.output.extend(
        helper.make_tensor_value_info(name, kind, ["masks", most])
        for name, kind in ((TOP_IDS, TensorProto.INT64), (TOP_SCORES, TensorProto.FLOAT))
    )
