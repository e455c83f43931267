"""Attention as one operator, `Attention` of opset 23, in the place of the dozen nodes that an exporter writes.

The operator reads queries, keys and values as the products by their weights leave them: nothing is transposed in
memory, and scores are scaled and masked as they are made. The same answers to rounding; but a query that may read no
key, which only padding is, gets zeros, where it got the mean of all values. There has to be a query: the last layer,
wherever it is computed, is computed at the first position of each text.
"""

from collections.abc import Iterator

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from clozeline.exporting.attention_blocks import Block, blocks
from clozeline.exporting.graph import drop_unread

ATTENTION = "Attention"
OPSET = 23
"""The first that has the operator."""
_MASKED = 2
"""Which scores are shown: those that softmax is taken of."""
_ONE = "attention/one"
_MASK, _LENGTH, _SHAPE = "{}/mask_of_queries", "{}/length", "{}/shape"


def fuse_attention(model: ModelProto) -> None:
    """Change `model`, whose sizes are settled, and which computes the same as before.

    A block that is written in another way stays as it is (DeBERTa's scores are a sum of three products), and so do
    all of them where the graph's opset has no such operator.
    """
    if model.opset_import[0].version < OPSET:
        return
    masks = _Masks()
    changed: dict[str, list[NodeProto]] = {}
    for product, block in blocks(model):
        changed[block.output] = []
        changed |= {shape.output[0]: [_reading(block.output, shape)] for shape in block.shapes}
        changed[product] = [*masks.of(block), _fused(block)]
    nodes = [new for node in model.graph.node for new in changed.get(node.output[0], [node])]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], dtype=np.int64), _ONE))
    drop_unread(model.graph)


def show_scores(graph: GraphProto, name: str) -> None:
    """Let each node of attention give its masked scores [B, A, Q, K] too, under `name` formatted with the node's."""
    for node in graph.node:
        if node.op_type == ATTENTION:
            node.output.extend(["", "", name.format(node.name)])  # the two between are of decoders
            node.attribute.append(helper.make_attribute("qk_matmul_output_mode", _MASKED))


def _fused(block: Block) -> NodeProto:
    mask = _mask_of(block)
    return helper.make_node(
        ATTENTION,
        [block.query, block.key, block.value, *([mask] if mask else [])],
        [block.output],
        name=block.softmax.replace("Softmax", ATTENTION),
        scale=block.scale,
        # Where heads are apart already, there is an axis that tells it.
        **({} if block.heads_apart else {"q_num_heads": block.num_heads, "kv_num_heads": block.num_heads}),
    )


def _reading(name: str, shape: NodeProto) -> NodeProto:
    return helper.make_node("Shape", [name], list(shape.output), name=shape.name)


def _mask_of(block: Block) -> str | None:
    """Name of the mask with a row for each query: the same for all blocks in which each position is a query."""
    return block.mask and _MASK.format(block.mask if block.is_of_itself else block.softmax)


class _Masks:
    """What has been made so far: a mask that all layers read is made once."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def of(self, block: Block) -> Iterator[NodeProto]:
        """The nodes that give the block's mask a row for each query: the operator takes no row that is for all."""
        mask = _mask_of(block)
        if mask is None or mask in self._made:
            return
        self._made.add(mask)
        length, shape = _LENGTH.format(mask), _SHAPE.format(mask)
        asked, axis = (block.mask, 3) if block.is_of_itself else (block.query, 2 if block.heads_apart else 1)
        yield helper.make_node("Shape", [asked], [length], name=length, start=axis, end=axis + 1)
        yield helper.make_node("Concat", [_ONE, _ONE, length, _ONE], [shape], name=shape, axis=0)
        yield helper.make_node("Expand", [block.mask, shape], [mask], name=mask)
