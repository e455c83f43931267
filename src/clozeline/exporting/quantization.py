"""INT8 with scales computed at run time: 8-bit activations, 7- or 8-bit weights, integer products.

What differs from onnxruntime's `quantize_dynamic`, and why (measured on the default encoder and on all-MiniLM-L6-v2):

- An activation has a scale for each token. With one for the whole batch, a text's neighbours and its padding show in
  its answer (cosine of the same text alone and in a batch: down to 0.990; now 1), and one outlying token costs all
  others their precision. With VNNI it takes a tenth more time.
- The embedding that is also the vocabulary head stays one tensor, in the layout it is stored in; the graph transposes
  it. (onnxruntime transposes it in place and breaks the embedding, onnxruntime #25890.) It keeps all 8 bits: the
  product by it is unsigned × unsigned, which nowhere saturates and is slower only where rows are many.
- ONNX Runtime folds what is done to constants when it opens the file.

K inputs and N outputs of a linear layer.
"""

from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.graph import drop_unread, op_counts

MICROSOFT = "com.microsoft"
PRODUCT = "MatMulIntegerToFloat"
"""Of onnxruntime's own domain: a product of integers, made floats by the weight's scales before it is written."""
FULL_LIMIT = 127
REDUCED_LIMIT = 64
_ZERO_POINT = 128

Weights = Literal["int7", "uint8", "int8"]
"""How a weight is stored for products of integers.

- `int7`: signed, -64..64: two products fit the 16-bit sums of processors without VNNI. The fastest.
- `uint8`: unsigned around 128, all 8 bits: fits everywhere, by kernels that are slower without VNNI.
- `int8`: signed, all 8 bits: sums saturate on processors without VNNI, and answers are then wrong.
"""


@dataclass(frozen=True)
class Scheme:
    per_token: bool
    """Scales of activations: one for each token, or one for the batch."""
    per_channel: bool
    """Scales of weights: one for each output, or one for the matrix. Embedding tables have one for each row."""
    weights: Weights
    embeddings: bool
    """Lookups read 8-bit rows."""


@dataclass(frozen=True)
class Quantized:
    model: ModelProto
    num_matmuls: int
    num_embeddings: int
    exact: tuple[str, ...]
    """Names of the MatMuls that were to stay."""


def quantize(model: ModelProto, scheme: Scheme, *, exact: Collection[str] = ()) -> Quantized:
    """A copy of `model` with every MatMul by a constant matrix in INT8, and its embedding tables if asked.

    Products of two activations (attention), Gemm (a classifier's last layer), and the nodes named in `exact` stay.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    rewriting = _Rewriting(copy, scheme, exact)
    nodes = [new for node in copy.graph.node for new in rewriting.rewritten(node)]
    copy.graph.ClearField("node")
    copy.graph.node.extend(nodes)
    copy.graph.initializer.extend(rewriting.constants.values())
    drop_unread(copy.graph)
    counts = op_counts(copy)
    assert counts["MatMulInteger"] + counts[PRODUCT] == rewriting.num_matmuls
    if counts[PRODUCT]:
        copy.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return Quantized(copy, rewriting.num_matmuls, rewriting.num_embeddings, tuple(exact))


@dataclass(frozen=True)
class _Integers:
    """Names of the tensors that stand for a tensor of floats: (integers - zero point) × scale."""

    values: str
    scale: str
    zero_point: str | None = None


_Making = Generator[NodeProto, None, _Integers]


class _Rewriting:
    """What has been made so far, so that a weight or an activation read twice is quantized once."""

    def __init__(self, model: ModelProto, scheme: Scheme, exact: Collection[str]) -> None:
        self._scheme = scheme
        self._opset = model.opset_import[0].version
        self._exact = exact
        self._matrices = {
            tensor.name: tensor
            for tensor in model.graph.initializer
            if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2
        }
        self._transposed = {
            node.output[0]: node.input[0]
            for node in model.graph.node
            if node.op_type == "Transpose" and node.input[0] in self._matrices
        }
        self._tables = {node.input[0] for node in model.graph.node if self._is_lookup(node)}
        self._made: dict[str, _Integers] = {}
        self.constants: dict[str, TensorProto] = {}
        self.num_matmuls = 0
        self.num_embeddings = 0

    def rewritten(self, node: NodeProto) -> Iterator[NodeProto]:
        """The nodes that take the place of `node`; itself, if it stays."""
        if self.is_product_by_constant(node):
            if node.name not in self._exact:
                self.num_matmuls += 1
                yield from self._product(node)
            elif self._scheme.embeddings and self._transposed.get(node.input[1]) in self._tables:
                yield from self._exact_product_by_table(node)
            else:
                yield node
        elif self._scheme.embeddings and self._is_lookup(node):
            self.num_embeddings += 1
            yield from self._lookup(node)
        else:
            yield node

    def is_product_by_constant(self, node: NodeProto) -> bool:
        return node.op_type == "MatMul" and (node.input[1] in self._matrices or node.input[1] in self._transposed)

    def _is_lookup(self, node: NodeProto) -> bool:
        return node.op_type == "Gather" and node.input[0] in self._matrices and _axis(node) == 0

    def _product(self, node: NodeProto) -> Iterator[NodeProto]:
        left = yield from self._once(node.input[0], self._per_token if self._scheme.per_token else self._per_batch)
        if node.input[1] in self._matrices:
            right = self._weight(node.input[1], outputs_axis=1)
        else:
            right = yield from self._once(self._transposed[node.input[1]], self._transposed_weight)
        make = self._product_of_tokens if self._scheme.per_token else self._product_of_batch
        yield from make(left, right, node.output[0])

    def _product_of_batch(self, left: _Integers, right: _Integers, output: str) -> Iterator[NodeProto]:
        """Five nodes that onnxruntime makes one of, a bias after them too."""
        factors = [left.values, right.values, left.zero_point, *([right.zero_point] if right.zero_point else [])]
        product = f"{output}/product"
        yield helper.make_node("MatMulInteger", factors, [f"{product}_integers"])
        yield helper.make_node("Cast", [f"{product}_integers"], [product], to=TensorProto.FLOAT)
        yield helper.make_node("Mul", [left.scale, right.scale], [f"{product}_scaled"])
        yield helper.make_node("Mul", [f"{product}_scaled", product], [output])

    def _product_of_tokens(self, left: _Integers, right: _Integers, output: str) -> Iterator[NodeProto]:
        """The tokens' scales come after the operator, which knows one for the batch only: 1."""
        one = self._constant("quantization/one", np.array(1, dtype=np.float32))
        inputs = [left.values, right.values, one, right.scale, left.zero_point]
        inputs += [right.zero_point] if right.zero_point else []
        product = f"{output}/product"
        yield helper.make_node(PRODUCT, inputs, [product], domain=MICROSOFT)
        yield helper.make_node("Mul", [product, left.scale], [output])

    def _lookup(self, node: NodeProto) -> Iterator[NodeProto]:
        """Rows of an embedding table as 8-bit rows, each times its own scale."""
        name, ids = node.input
        table = self._stored_integers(name, 0, FULL_LIMIT)
        last_axis = self._constant("quantization/last_axis", np.array([-1], dtype=np.int64))
        row = f"{node.output[0]}/row"
        yield helper.make_node("Gather", [table.values, ids], [f"{row}_integers"], axis=0)
        yield helper.make_node("Cast", [f"{row}_integers"], [row], to=TensorProto.FLOAT)
        yield helper.make_node("Gather", [table.scale, ids], [f"{row}_scale"], axis=0)
        yield helper.make_node("Unsqueeze", [f"{row}_scale", last_axis], [f"{row}_scales"])
        yield helper.make_node("Mul", [row, f"{row}_scales"], list(node.output))

    def _weight(self, name: str, outputs_axis: int) -> _Integers:
        axis = outputs_axis if self._scheme.per_channel else None
        if self._scheme.weights != "uint8":
            return self._stored_integers(name, axis, REDUCED_LIMIT if self._scheme.weights == "int7" else FULL_LIMIT)
        zero_point = self._constant("quantization/zero_point", np.array(_ZERO_POINT, dtype=np.uint8))
        stored = self._stored_integers(name, axis, FULL_LIMIT, shift=_ZERO_POINT)
        return _Integers(stored.values, stored.scale, zero_point)

    def _transposed_weight(self, name: str) -> _Making:
        """A matrix that is stored as [N, K], to be multiplied as [K, N]."""
        if name in self._tables:
            return (yield from self._vocabulary(name))
        stored = self._weight(name, outputs_axis=0)
        yield helper.make_node("Transpose", [stored.values], [f"{stored.values}/transposed"], perm=[1, 0])
        return _Integers(f"{stored.values}/transposed", stored.scale, stored.zero_point)

    def _vocabulary(self, name: str) -> _Making:
        """The embedding table as a factor: signed 8 bits as unsigned ones, transposed; all folded at loading."""
        table = self._stored_integers(name, 0, FULL_LIMIT)
        zero_point = self._constant("quantization/zero_point", np.array(_ZERO_POINT, dtype=np.uint8))
        shift = self._constant("quantization/shift", np.array(_ZERO_POINT, dtype=np.int32))
        step = f"{table.values}/factor"
        yield helper.make_node("Cast", [table.values], [f"{step}_wide"], to=TensorProto.INT32)
        yield helper.make_node("Add", [f"{step}_wide", shift], [f"{step}_shifted"])
        yield helper.make_node("Cast", [f"{step}_shifted"], [f"{step}_unsigned"], to=TensorProto.UINT8)
        yield helper.make_node("Transpose", [f"{step}_unsigned"], [step], perm=[1, 0])
        return _Integers(step, table.scale, zero_point)

    def _exact_product_by_table(self, node: NodeProto) -> Iterator[NodeProto]:
        """By the rows that lookups read: the table is in the file once, its floats are made when it is opened."""
        table = self._stored_integers(self._transposed[node.input[1]], 0, FULL_LIMIT)
        last_axis = self._constant("quantization/last_axis", np.array([-1], dtype=np.int64))
        step = f"{table.values}/floats"
        yield helper.make_node("Cast", [table.values], [f"{step}_unscaled"], to=TensorProto.FLOAT)
        yield helper.make_node("Unsqueeze", [table.scale, last_axis], [f"{step}_scale"])
        yield helper.make_node("Mul", [f"{step}_unscaled", f"{step}_scale"], [f"{step}_rows"])
        yield helper.make_node("Transpose", [f"{step}_rows"], [step], perm=[1, 0])
        yield helper.make_node("MatMul", [node.input[0], step], list(node.output), name=node.name)

    def _per_batch(self, name: str) -> _Making:
        quantized = _Integers(f"{name}/quantized", f"{name}/scale", f"{name}/zero_point")
        outputs = [quantized.values, quantized.scale, f"{name}/zero_point"]
        yield helper.make_node("DynamicQuantizeLinear", [name], outputs)
        return quantized

    def _per_token(self, name: str) -> _Making:
        """Each token by its own largest value: -127..127, shifted to be unsigned.

        `QuantizeLinear` has a scale for each row, but of a matrix only: the tokens of all texts are its rows meanwhile.
        """
        zero_point = self._constant("quantization/zero_point", np.array(_ZERO_POINT, dtype=np.uint8))
        step = self._constant("quantization/step", np.array(1 / FULL_LIMIT, dtype=np.float32))
        first, last = (self._constant(f"quantization/{n}", np.array([n], dtype=np.int64)) for n in (0, 1))
        last_axis = self._constant("quantization/last_axis", np.array([-1], dtype=np.int64))
        yield helper.make_node("Abs", [name], [f"{name}/size"])
        yield self._largest_of_last_axis(f"{name}/size", f"{name}/reduced", last_axis)
        # Of no rows (no mask in a batch) onnxruntime 1.31 reduces nothing, and the axis would keep its size.
        yield helper.make_node("Slice", [f"{name}/reduced", first, last, last_axis], [f"{name}/largest"])
        # A token of zeros has the scale 0, which makes zeros again of whatever 0 / 0 is rounded to.
        yield helper.make_node("Mul", [f"{name}/largest", step], [f"{name}/scale"])
        yield helper.make_node("Reshape", [f"{name}/scale", last_axis], [f"{name}/scale_of_row"])
        yield helper.make_node("Shape", [f"{name}/scale_of_row"], [f"{name}/num_rows"])
        filled = numpy_helper.from_array(np.array([_ZERO_POINT], dtype=np.uint8))
        yield helper.make_node("ConstantOfShape", [f"{name}/num_rows"], [f"{name}/zero_of_row"], value=filled)
        yield helper.make_node("Flatten", [name], [f"{name}/rows"], axis=-1)
        row = [f"{name}/rows", f"{name}/scale_of_row", f"{name}/zero_of_row"]
        yield helper.make_node("QuantizeLinear", row, [f"{name}/quantized_rows"], axis=0)
        yield helper.make_node("Shape", [name], [f"{name}/shape"])
        shaped = [f"{name}/quantized_rows", f"{name}/shape"]
        yield helper.make_node("Reshape", shaped, [f"{name}/quantized"], allowzero=1)
        return _Integers(f"{name}/quantized", f"{name}/scale", zero_point)

    def _largest_of_last_axis(self, name: str, largest: str, last_axis: str) -> NodeProto:
        if self._opset < 18:
            return helper.make_node("ReduceMax", [name], [largest], axes=[-1])
        return helper.make_node("ReduceMax", [name, last_axis], [largest])

    def _once(self, name: str, make: Callable[[str], _Making]) -> _Making:
        if name not in self._made:
            self._made[name] = yield from make(name)
        return self._made[name]

    def _stored_integers(self, name: str, axis: int | None, limit: int, shift: int = 0) -> _Integers:
        quantized = _Integers(f"{name}/{limit + shift}/{axis}", f"{name}/{limit + shift}/{axis}/scale")
        if quantized.values not in self.constants:
            integers, scale = symmetric(numpy_helper.to_array(self._matrices[name]), axis, limit)
            self._constant(
                quantized.values, (integers.astype(np.int16) + shift).astype(np.uint8) if shift else integers
            )
            self._constant(quantized.scale, scale)
        return quantized

    def _constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(value, name)
        return name


def products_by_constants(model: ModelProto) -> list[str]:
    """Names of the MatMuls that `quantize` would put into INT8."""
    rewriting = _Rewriting(model, Scheme(per_token=True, per_channel=True, weights="int7", embeddings=True), ())
    return [node.name for node in model.graph.node if rewriting.is_product_by_constant(node)]


def symmetric(
    matrix: npt.NDArray[np.float32], axis: int | None, limit: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Integers in -limit..limit and the scale that gives `matrix` back: one for each index of `axis`, or one in all.

    The formula is onnxruntime's (`quant_utils.compute_scale_zp`, symmetric): scale = max |w| / limit, round to even.
    """
    largest = np.abs(matrix).max(axis=None if axis is None else 1 - axis, keepdims=True)
    scale = np.where(largest == 0, np.float32(1), largest / np.float32(limit)).astype(np.float32)
    integers = np.clip(np.rint(matrix / scale), -limit, limit).astype(np.int8)
    return integers, scale.reshape(()) if axis is None else scale.reshape(-1)


def _axis(node: NodeProto) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "axis"), 0)
