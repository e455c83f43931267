"""Dynamic INT8: 8-bit activations scaled for each batch, 8-bit (or 7-bit) weights scaled for each column.

The arithmetic is that of onnxruntime's `quantize_dynamic`; what differs is that a weight is quantized once, in the
layout it is stored in, and transposed by the graph. So the embedding that is also the vocabulary head stays one
tensor (onnxruntime transposes it in place and breaks the embedding, onnxruntime #25890), scaled for each word.
ONNX Runtime folds the transposition and fuses the rest into one kernel when it opens the file.

K inputs and N outputs of a linear layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.graph import drop_unread, op_counts


@dataclass(frozen=True)
class Scheme:
    """The choices; activations are always unsigned and per tensor, the only kind with a fast kernel."""

    per_channel: bool
    reduce_range: bool
    """Weights in -64..64: two products of 8 bits fit the 16-bit sums of processors without VNNI."""
    embeddings: bool


@dataclass(frozen=True)
class Quantized:
    model: ModelProto
    num_matmuls: int
    num_embeddings: int


def quantize(model: ModelProto, scheme: Scheme) -> Quantized:
    """A copy of `model` with every MatMul by a constant matrix in INT8, and its embedding tables if asked.

    Products of two activations (attention), and Gemm (a classifier's last layer), stay as they are.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    rewriting = _Rewriting(copy, scheme)
    nodes = [new for node in copy.graph.node for new in rewriting.matmul(node)]
    if scheme.embeddings:
        nodes = [new for node in nodes for new in rewriting.embedding(node)]
    copy.graph.ClearField("node")
    copy.graph.node.extend(nodes)
    copy.graph.initializer.extend(rewriting.new_initializers)
    drop_unread(copy.graph)
    assert op_counts(copy)["MatMulInteger"] == rewriting.num_matmuls
    return Quantized(copy, rewriting.num_matmuls, rewriting.num_embeddings)


@dataclass(frozen=True)
class _Weight:
    """A quantized matrix: the names of its two tensors."""

    values: str
    scale: str


@dataclass
class _Rewriting:
    """What has been made so far, so that a weight or an activation used twice is quantized once."""

    model: ModelProto
    scheme: Scheme
    new_initializers: list[TensorProto] = field(default_factory=list)
    num_matmuls: int = 0
    num_embeddings: int = 0

    def __post_init__(self) -> None:
        graph = self.model.graph
        self._matrices = {
            tensor.name: tensor
            for tensor in graph.initializer
            if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2
        }
        self._transposed = {
            node.output[0]: node.input[0]
            for node in graph.node
            if node.op_type == "Transpose" and node.input[0] in self._matrices
        }
        self._weights: dict[tuple[str, int], _Weight] = {}
        self._made: set[str] = set()

    def matmul(self, node: NodeProto) -> Iterator[NodeProto]:
        """`Y = A B` as `Y = (integer product of A and B) × scale of A × scale of B`; any other node as it is."""
        if node.op_type != "MatMul" or not (node.input[1] in self._matrices or node.input[1] in self._transposed):
            yield node
            return
        self.num_matmuls += 1
        activation, factor = node.input
        tensor_name = self._transposed.get(factor, factor)
        weight = self._weight(tensor_name, axis=0 if factor in self._transposed else 1)
        integers = weight.values
        if factor in self._transposed:
            integers = f"{weight.values}/transposed"
            yield from self._once("Transpose", [weight.values], [integers], perm=[1, 0])
        quantized = [f"{activation}/quantized{end}" for end in ("", "_scale", "_zero_point")]
        yield from self._once("DynamicQuantizeLinear", [activation], quantized)
        product = f"{node.output[0]}/product"
        yield helper.make_node("MatMulInteger", [quantized[0], integers, quantized[2]], [f"{product}_integers"])
        yield helper.make_node("Cast", [f"{product}_integers"], [product], to=TensorProto.FLOAT)
        yield helper.make_node("Mul", [quantized[1], weight.scale], [f"{product}_scale"])
        yield helper.make_node("Mul", [product, f"{product}_scale"], list(node.output))

    def embedding(self, node: NodeProto) -> Iterator[NodeProto]:
        """Rows of a table as 8-bit rows, each times its own scale; any other node as it is."""
        if node.op_type != "Gather" or node.input[0] not in self._matrices or _axis(node) != 0:
            yield node
            return
        self.num_embeddings += 1
        table, ids = node.input
        # A table that is the vocabulary head too is there already; alone, it need not leave out a bit.
        tied = self._weights.get((table, 0)) if self.scheme.per_channel else None
        weight = tied or self._quantized(table, axis=0, limit=127, suffix="table")
        row = f"{node.output[0]}/row"
        yield helper.make_node("Gather", [weight.values, ids], [f"{row}_integers"], axis=0)
        yield helper.make_node("Cast", [f"{row}_integers"], [row], to=TensorProto.FLOAT)
        yield helper.make_node("Gather", [weight.scale, ids], [f"{row}_scale"], axis=0)
        yield helper.make_node("Unsqueeze", [f"{row}_scale", self._last_axis()], [f"{row}_scales"])
        yield helper.make_node("Mul", [row, f"{row}_scales"], list(node.output))

    def _weight(self, tensor_name: str, axis: int) -> _Weight:
        key = (tensor_name, axis)
        if key not in self._weights:
            limit = 64 if self.scheme.reduce_range else 127
            channels = axis if self.scheme.per_channel else None
            self._weights[key] = self._quantized(tensor_name, channels, limit, suffix=("rows", "columns")[axis])
        return self._weights[key]

    def _quantized(self, tensor_name: str, axis: int | None, limit: int, suffix: str) -> _Weight:
        weight = _Weight(f"{tensor_name}/{suffix}", f"{tensor_name}/{suffix}_scale")
        if weight.values not in self._made:
            self._made.add(weight.values)
            integers, scale = symmetric(numpy_helper.to_array(self._matrices[tensor_name]), axis, limit)
            self.new_initializers.append(numpy_helper.from_array(integers, weight.values))
            self.new_initializers.append(numpy_helper.from_array(scale, weight.scale))
        return weight

    def _once(self, operator: str, inputs: list[str], outputs: list[str], **attributes: object) -> Iterator[NodeProto]:
        if outputs[0] not in self._made:
            self._made.add(outputs[0])
            yield helper.make_node(operator, inputs, outputs, **attributes)

    def _last_axis(self) -> str:
        name = "quantization/last_axis"
        if name not in self._made:
            self._made.add(name)
            self.new_initializers.append(numpy_helper.from_array(np.array([-1], dtype=np.int64), name))
        return name


def symmetric(
    matrix: npt.NDArray[np.float32], axis: int | None, limit: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Integers in -limit..limit and the scale that gives `matrix` back: one for each index of `axis`, or one in all.

    The formula is onnxruntime's (`quant_utils.compute_scale_zp`, symmetric): scale = max |w| / limit, round to even.
    """
    other_axes = None if axis is None else 1 - axis
    largest = np.abs(matrix).max(axis=other_axes, keepdims=True)
    scale = np.where(largest == 0, np.float32(1), largest / np.float32(limit)).astype(np.float32)
    integers = np.clip(np.rint(matrix / scale), -limit, limit).astype(np.int8)
    return integers, scale.reshape(()) if axis is None else scale.reshape(-1)


def _axis(node: NodeProto) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "axis"), 0)
