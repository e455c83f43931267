"""Blocks of attention in a graph, as torch's exporter writes what models say in Python.

    softmax(scale · query × key + mask) × value

A block is read only if it is all of that and nothing else; what is not understood is none.

Shapes: B texts, Q queries, K keys, X any of both; A heads, D dimensions of a head, H = A × D.
"""

import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from types import MappingProxyType

from onnx import ModelProto, NodeProto, TensorProto

from clozeline.exporting.sizes import Axes, inferred_axes, small_tensors


@dataclass(frozen=True)
class Block:
    """One attention of a graph, by the names of the tensors that go in and come out; shapes as above."""

    query: str
    """[B, Q, H]; or [B, A, Q, D], if `heads_apart`."""
    key: str
    """[B, K, H] or [B, A, K, D]"""
    value: str
    """As `key`."""
    mask: str | None
    """Added to the scores [B, A, Q, K]; has four axes, of which any but the last can be 1."""
    scale: float
    num_heads: int
    heads_apart: bool
    is_of_itself: bool
    """Whether queries and keys are of the same positions."""
    softmax: str
    """Name of the node."""
    output: str
    """[B, Q, H]; or [B, A, Q, D], if `heads_apart`."""
    shapes: tuple[NodeProto, ...] = ()
    """That ask for the number of texts or of queries in between; `output` can tell it too."""


def blocks(model: ModelProto) -> Iterator[tuple[str, Block]]:
    """Those of `model`, whose sizes are settled, in its order; and before each what its second product gives.

    Heads are apart where something lies between them and the products by weights, such as rotary positions.
    """
    known = _Known.of(model)
    for node in model.graph.node:
        if node.op_type == "MatMul" and (block := _block(known, node)):
            yield node.output[0], block


def _block(known: "_Known", product: NodeProto) -> Block | None:
    """The one whose second product it is."""
    softmax = known.node(product.input[0], "Softmax")
    if softmax is None or _attribute(softmax, "axis", -1) != -1:
        return None
    scores, value = _scores(known, softmax.input[0]), product.input[1]
    if scores is None:
        return None
    heads = known.heads(scores.query)
    if heads is None or known.heads(scores.key, scores.heads_axis) != heads or known.heads(value) != heads:
        return None
    apart = Block(
        scores.query,
        scores.key,
        value,
        scores.mask,
        scores.scale,
        num_heads=heads[0],
        heads_apart=True,
        is_of_itself=known.origin(scores.query) == known.origin(scores.key),
        softmax=softmax.name,
        output=product.output[0],
    )
    return _together(known, apart, scores.heads_axis) or (apart if scores.heads_axis == 1 else None)


@dataclass(frozen=True)
class _Scores:
    """scale · query × key + mask"""

    query: str
    """[B, A, Q, D]"""
    key: str
    """[B, A, K, D]; or [B, K, A, D], if `heads_axis` is 2."""
    heads_axis: int
    scale: float
    mask: str | None


def _scores(known: "_Known", name: str) -> _Scores | None:
    add = known.node(name, "Add")
    for scores, mask in ((name, None),) if add is None else ((*add.input,), (*reversed(add.input),)):
        factor, product = known.unscaled(scores)
        node = known.node(product, "MatMul")
        if node and (mask is None or known.is_mask(mask)) and (found := _product(known, node)):
            return replace(found, scale=factor * found.scale, mask=mask)
    return None


def _product(known: "_Known", node: NodeProto) -> _Scores | None:
    """query × key, each of which can be scaled."""
    of_query, query = known.unscaled(node.input[0])
    of_turned, turned = known.unscaled(node.input[1])
    transpose = known.node(turned, "Transpose")
    heads_axis = _HEADS_AXIS.get(_order(transpose)) if transpose else None
    if transpose is None or heads_axis is None:
        return None
    of_key, key = known.unscaled(transpose.input[0])
    return _Scores(query, key, heads_axis, of_query * of_turned * of_key, mask=None)


_SWAPPED = (0, 2, 1, 3)
"""From [B, X, A, D] to [B, A, X, D], or back."""
_HEADS_AXIS: Mapping[tuple[int, ...], int] = MappingProxyType({(0, 1, 3, 2): 1, (0, 2, 3, 1): 2})
"""Of a key before it is transposed to [B, A, D, K], by the order of its axes then."""


def _together(known: "_Known", apart: Block, heads_axis: int) -> Block | None:
    """The same block before its heads were put apart, and after they were put together; None: they were not."""
    query, value = (known.joined(known.swapped(name)) for name in (apart.query, apart.value))
    key = known.joined(apart.key if heads_axis == 2 else known.swapped(apart.key))
    swap = known.only_reader(apart.output)
    if not (query and key and value and swap and swap.op_type == "Transpose" and _order(swap) == _SWAPPED):
        return None
    readers = known.readers[swap.output[0]]
    shapes = tuple(node for node in readers if known.asks_first_two(node))
    joins = [node for node in readers if node.op_type == "Reshape" and known.joins(node)]
    if len(joins) != 1 or len(shapes) + 1 != len(readers):
        return None
    return replace(
        apart, query=query, key=key, value=value, heads_apart=False, output=joins[0].output[0], shapes=shapes
    )


_OF_NUMBERS: Mapping[str, Callable[..., float]] = MappingProxyType(
    {"Sqrt": sqrt, "Div": operator.truediv, "Mul": operator.mul, "Cast": float, "Identity": float}
)
"""What exporters write of a scale: 1 / √D, and its root for each of the factors."""
_AT_EACH_POSITION = frozenset({"Add", "Mul", "MatMul", "Transpose", "Reshape", "Split", "Squeeze"})
"""On the way from hidden states to heads: whose output is of the positions of its first input that is not fixed."""


@dataclass(frozen=True)
class _Known:
    axes: Mapping[str, Axes]
    made_by: Mapping[str, NodeProto]
    readers: Mapping[str, Sequence[NodeProto]]
    constants: Mapping[str, list[float]]
    """Small ones, flat."""
    fixed: frozenset[str]
    """Weights, and what is made of nothing else."""

    @classmethod
    def of(cls, model: ModelProto) -> "_Known":
        graph = model.graph
        readers: defaultdict[str, list[NodeProto]] = defaultdict(list)
        fixed = {tensor.name for tensor in graph.initializer}
        for node in graph.node:
            for name in node.input:
                readers[name].append(node)
            if fixed.issuperset(node.input):
                fixed.update(node.output)
        for output in graph.output:
            readers[output.name].append(NodeProto(name=output.name))
        return cls(
            inferred_axes(model),
            {name: node for node in graph.node for name in node.output},
            readers,
            {name: values.ravel().tolist() for name, values in small_tensors(graph)},
            frozenset(fixed),
        )

    def node(self, name: str, op_type: str) -> NodeProto | None:
        """That makes the tensor, if it is of this kind."""
        node = self.made_by.get(name)
        return node if node is not None and node.op_type == op_type else None

    def only_reader(self, name: str) -> NodeProto | None:
        readers = self.readers[name]
        return readers[0] if len(readers) == 1 else None

    def heads(self, name: str, axis: int = 1) -> tuple[int, int] | None:
        """A, which is that axis, and D, the last, of four."""
        axes = self.axes.get(name, ())
        if len(axes) != 4:
            return None
        number, size = axes[axis], axes[3]
        return (number, size) if isinstance(number, int) and isinstance(size, int) else None

    def is_mask(self, name: str) -> bool:
        axes = self.axes.get(name, ())
        return len(axes) == 4 and axes[3] != 1

    def unscaled(self, name: str) -> tuple[float, str]:
        """The number that the tensor is multiplied by, and what is multiplied."""
        node = self.made_by.get(name)
        if node is not None and node.op_type in ("Mul", "Div"):
            first, second = node.input
            if (number := self._number(second)) is not None:
                factor, inner = self.unscaled(first)
                return (factor * number if node.op_type == "Mul" else factor / number), inner
            if node.op_type == "Mul" and (number := self._number(first)) is not None:
                factor, inner = self.unscaled(second)
                return factor * number, inner
        return 1.0, name

    def _number(self, name: str) -> float | None:
        if name in self.constants:
            values = self.constants[name]
            return float(values[0]) if len(values) == 1 else None
        node = self.made_by.get(name)
        if node is None or node.op_type not in _OF_NUMBERS or _attribute(node, "to", TensorProto.FLOAT) not in _FLOATS:
            return None
        numbers = [self._number(given) for given in node.input]
        return None if None in numbers else _OF_NUMBERS[node.op_type](*numbers)

    def swapped(self, name: str) -> str:
        """Name of the tensor [B, X, A, D] of which [B, A, X, D] was made; empty: of none."""
        node = self.node(name, "Transpose")
        return node.input[0] if node is not None and _order(node) == _SWAPPED else ""

    def joined(self, name: str) -> str | None:
        """Name of the tensor [B, X, H] of which [B, X, A, D] was made."""
        node, heads = self.node(name, "Reshape"), self.heads(name, axis=2)
        if node is None or heads is None or not self._keeps_texts(node):
            return None
        axes = self.axes.get(node.input[0], ())
        return node.input[0] if len(axes) == 3 and axes[2] == heads[0] * heads[1] else None

    def joins(self, reshape: NodeProto) -> bool:
        """Whether it makes [B, X, H] of [B, X, A, D]."""
        heads, axes = self.heads(reshape.input[0], axis=2), self.axes.get(reshape.output[0], ())
        is_width = heads is not None and len(axes) == 3 and axes[2] == heads[0] * heads[1]
        return is_width and self._keeps_texts(reshape)

    def _keeps_texts(self, reshape: NodeProto) -> bool:
        """Whether its first size is asked of a tensor's first axis."""
        sizes = self.node(reshape.input[1], "Concat")
        if sizes is None:
            return self.constants.get(reshape.input[1], [None])[0] == 0 and not _attribute(reshape, "allowzero", 0)
        name = sizes.input[0]
        while (node := self.made_by.get(name)) is not None and node.op_type in ("Unsqueeze", "Identity"):
            name = node.input[0]
        return node is not None and self._asked_axis(node) == 0

    def asks_first_two(self, node: NodeProto) -> bool:
        """Whether it is a Shape of which nothing but the first two sizes is read."""
        return node.op_type == "Shape" and all(
            self._asked_axis(reader) in (0, 1) for reader in self.readers[node.output[0]]
        )

    def _asked_axis(self, gather: NodeProto) -> float | None:
        if gather.op_type != "Gather":
            return None
        shape, place = self.node(gather.input[0], "Shape"), self.constants.get(gather.input[1], [])
        return place[0] if shape is not None and not shape.attribute and len(place) == 1 else None

    def origin(self, name: str) -> str:
        """Name of the tensor whose positions this one's are."""
        while (node := self.made_by.get(name)) is not None and node.op_type in _AT_EACH_POSITION:
            moving = [given for given in node.input if given not in self.fixed]
            if not moving:
                break
            name = moving[0]
        return name


_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)


def _order(transpose: NodeProto) -> tuple[int, ...]:
    return tuple(axis for attribute in transpose.attribute for axis in attribute.ints)


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)
