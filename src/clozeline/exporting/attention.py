"""Rewriting of attention, one operator of opset 23, to the form that ONNX Runtime accepts and computes fastest.

The exporter splits and transposes heads, [B, A, X, D], because PyTorch's function needs them so. The operator also
reads them side by side, [B, X, A × D], as the products by weights leave them, which moves nothing in memory. ONNX
Runtime also refuses a mask that has one row for all queries, which the exporter writes.

Shapes: B texts, Q queries, K keys, X queries or keys; A heads, D dimensions of a head.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.graph import drop_unread, inferred_axes

ATTENTION = "Attention"
_SWAPPED = [0, 2, 1, 3]
"""Permutation from [B, X, A, D] to [B, A, X, D] and back."""


def settle_attention(model: ModelProto) -> None:
    """Rewrite the attention nodes in place without changing results; a graph of a lower opset has none."""
    settling = _Settling(model)
    nodes = [new for node in model.graph.node for new in settling.settled(node)]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(settling.constants)
    drop_unread(model.graph)


class _Settling:
    """State of a rewrite: facts about the graph as exported, and what has been replaced so far."""

    def __init__(self, model: ModelProto) -> None:
        self._axes = inferred_axes(model)
        self._made_by = {name: node for node in model.graph.node for name in node.output}
        self._readers: defaultdict[str, list[NodeProto]] = defaultdict(list)
        for node in model.graph.node:
            for name in node.input:
                self._readers[name].append(node)
        self._replaced: set[str] = set()
        self._masks: dict[tuple[str, int | str | None], str] = {}
        self.constants: list[TensorProto] = []

    def settled(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield the nodes that replace `node`."""
        if node.op_type == ATTENTION:
            num_queries = self._axis(node.input[0], 2)
            yield from self._with_heads_together(node)
            if len(node.input) > 3 and self._axis(node.input[3], -2) == 1:
                yield from self._with_rows(node, num_queries)
            yield node
        elif not self._replaced.intersection(node.output):
            yield node

    def _with_heads_together(self, node: NodeProto) -> Iterator[NodeProto]:
        joined = self._joined(node.output[0])
        apart = [self._before_swap(name) for name in node.input[:3]]
        if not joined or not all(apart):
            return
        for place, name in enumerate(apart):
            node.input[place] = self._whole(name) or f"{name}/together"
            if node.input[place] == f"{name}/together":
                sizes = self._constant(f"{name}/sizes", [0, 0, self._width(name)])
                yield helper.make_node("Reshape", [name, sizes], [node.input[place]], name=node.input[place])
        self._replaced.add(joined)
        node.output[0] = joined
        for attribute, name in (("q_num_heads", apart[0]), ("kv_num_heads", apart[1])):
            _set(node, attribute, int(self._axis(name, 2) or 0))

    def _with_rows(self, node: NodeProto, num_queries: int | str | None) -> Iterator[NodeProto]:
        """Expand the mask to a row for each query, once for all layers with as many queries."""
        mask, own = node.input[3], f"{node.name}/mask"
        node.input[3] = self._masks.setdefault((mask, num_queries or own), own)
        if node.input[3] == own:
            one, length, sizes = self._constant(f"{own}/one", [1]), f"{own}/length", f"{own}/sizes"
            axis = 1 if node.output[0] in self._replaced else 2
            yield helper.make_node("Shape", [node.input[0]], [length], name=length, start=axis, end=axis + 1)
            yield helper.make_node("Concat", [one, one, length, one], [sizes], name=sizes, axis=0)
            yield helper.make_node("Expand", [mask, sizes], [own], name=own)

    def _axis(self, name: str, axis: int) -> int | str | None:
        axes = self._axes.get(name, ())
        return axes[axis] if len(axes) == 4 else None

    def _width(self, name: str) -> int:
        """Return A × D of a tensor [B, X, A, D]; 0 for any other shape."""
        num_heads, size = self._axis(name, 2), self._axis(name, 3)
        return num_heads * size if isinstance(num_heads, int) and isinstance(size, int) else 0

    def _before_swap(self, name: str) -> str:
        """Return the name of the [B, X, A, D] tensor that was transposed to `name` [B, A, X, D]; empty if none was."""
        node = self._made_by.get(name)
        return str(node.input[0]) if node is not None and _is_swap(node) and self._width(node.input[0]) else ""

    def _whole(self, name: str) -> str:
        """Return the name of the [B, X, A × D] tensor that was reshaped to `name` [B, X, A, D]; empty if none was."""
        node = self._made_by.get(name)
        axes = self._axes.get(node.input[0], ()) if node is not None and node.op_type == "Reshape" else ()
        return str(node.input[0]) if node is not None and len(axes) == 3 and axes[2] == self._width(name) else ""

    def _joined(self, name: str) -> str:
        """Return the name of the [B, Q, A × D] tensor that is the only use of `name` [B, A, Q, D]; empty if none is."""
        swap = self._only_reader(name)
        reshape = self._only_reader(swap.output[0]) if swap is not None and _is_swap(swap) else None
        if reshape is None or reshape.op_type != "Reshape" or len(self._axes.get(reshape.output[0], ())) != 3:
            return ""
        return str(reshape.output[0])

    def _only_reader(self, name: str) -> NodeProto | None:
        readers = self._readers[name]
        return readers[0] if len(readers) == 1 else None

    def _constant(self, name: str, sizes: list[int]) -> str:
        self.constants.append(numpy_helper.from_array(np.array(sizes, dtype=np.int64), name))
        return name


def _is_swap(node: NodeProto) -> bool:
    return node.op_type == "Transpose" and [axis for it in node.attribute for axis in it.ints] == _SWAPPED


def _set(node: NodeProto, name: str, value: int) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    node.ClearField("attribute")
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
