"""The likeliest tokens at each predicted position, computed in the graph: a few numbers instead of a vocabulary.

Shapes: P predicted positions (masks, or ends of texts) in all texts together, V vocabulary, K likeliest tokens.
"""

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from clozeline.inference.language_model import TOP_IDS, TOP_SCORES

MOST = 100
"""Largest K, and the limit of `top_k` in a request."""


def num_likeliest(vocab_size: int) -> int:
    """Return K."""
    return min(MOST, vocab_size)


def add_likeliest(model: ModelProto, vocab_size: int, axis: str) -> None:
    """Add two outputs to `model`, computed from its `logits` [P, V]: `top_ids` and `top_scores` [P, K].

    They hold the likeliest tokens at each position, best first (the lower id on a tie), and their softmax probabilities
    over the whole vocabulary. ONNX Runtime computes them whatever is requested (onnxruntime #16013).
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
        helper.make_tensor_value_info(name, kind, [axis, most])
        for name, kind in ((TOP_IDS, TensorProto.INT64), (TOP_SCORES, TensorProto.FLOAT))
    )
