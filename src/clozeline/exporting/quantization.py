"""INT8 quantization: 8-bit activations with dynamic or fixed scales, 7- or 8-bit weights, integer products.

Weights are stored in one of the ways that `weights` in `export.ladder` can name. Activations have one scale for each
token, or a fixed one: each generator yields the nodes of the graph and returns the names of the tensors that they make.

Differences from onnxruntime's `quantize_dynamic`, and why (measured on the default encoder and on all-MiniLM-L6-v2):

- An activation has a scale for each token. With one for the whole batch, a text's neighbours and its padding change
  its answer (cosine of the same text alone and in a batch: down to 0.990; now 1), and an outlier token costs all others
  their precision. With VNNI it takes a tenth more time. Where the range varies little between tokens, one fixed scale
  is enough.
- The embedding that is also the vocabulary head stays one tensor in its stored layout; the graph transposes it.
  (onnxruntime transposes it in place and breaks the embedding, onnxruntime #25890.) It keeps all 8 bits: its product
  is unsigned × unsigned, which saturates on no processor and is slower only with many rows.
- ONNX Runtime folds operations on constants when it opens the file.

Shapes: K inputs and N outputs of a linear layer.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.graph import biases, drop_unread, float_matrices, lookups, op_counts, set_nodes, transposed
from clozeline.params.delivery import Weights

FULL_LIMIT = 127
ZERO_POINT = 128
# Number of steps between the ends of an 8-bit range.
LEVELS = 255

# Function that stores a tensor under a name, once, and returns the name.
Constant = Callable[[str, npt.NDArray[np.generic]], str]

MICROSOFT = "com.microsoft"
# Operator of onnxruntime's own domain: an integer product that is scaled to floats before it is written.
PRODUCT = "MatMulIntegerToFloat"
# Texts outside the exam, for the ranges of activations; the first 16 find the products with the largest error.
NUM_CALIBRATION_TEXTS = 64


@dataclass(frozen=True)
class ActivationRange:
    """Range of one activation; it includes 0."""

    low: float
    high: float
    ratio: float  # ratio of the fixed step for all tokens to the step of a typical token's own scale
    is_smoothed: bool = False  # whether the range is that of the smoothed activation (see `fixed_scales`)


_NO_RANGE: Mapping[str, ActivationRange] = {}


@dataclass(frozen=True)
class Integers:
    """Names of the tensors that represent a float tensor as (integers - zero point) × scale."""

    values: str
    scale: str
    zero_point: str | None = None


Making = Generator[NodeProto, None, Integers]


def static(name: str, reach: ActivationRange, constant: Constant) -> Making:
    """Quantize by a measured range in one pass; values outside are clipped to its ends."""
    scale, zero_point = scale_of(reach)
    known = [
        constant(f"{name}/scale", np.array(scale, dtype=np.float32)),
        constant(f"{name}/zero_point", np.array(zero_point, dtype=np.uint8)),
    ]
    yield helper.make_node("QuantizeLinear", [name, *known], [f"{name}/quantized"])
    return Integers(f"{name}/quantized", *known)


def scale_of(reach: ActivationRange) -> tuple[np.float32, int]:
    """Return the scale and the zero point that map a range to 0..255; 0.0 is represented exactly."""
    scale = np.float32((reach.high - reach.low) / LEVELS) or np.float32(1)
    return scale, round(-reach.low / float(scale))


def per_token(name: str, constant: Constant) -> Making:
    """Quantize each token by its own largest absolute value, to -127..127, shifted to be unsigned.

    `QuantizeLinear` takes a scale for each row of a matrix only, so the tokens of all texts are flattened to rows.
    """
    zero_point = constant("quantization/zero_point", np.array(ZERO_POINT, dtype=np.uint8))
    step = constant("quantization/step", np.array(1 / FULL_LIMIT, dtype=np.float32))
    first, last = (constant(f"quantization/{n}", np.array([n], dtype=np.int64)) for n in (0, 1))
    last_axis = constant("quantization/last_axis", np.array([-1], dtype=np.int64))
    yield helper.make_node("Abs", [name], [f"{name}/size"])
    yield helper.make_node("ReduceMax", [f"{name}/size", last_axis], [f"{name}/reduced"])
    # Without rows (no mask in the batch) onnxruntime 1.31 reduces nothing, and the axis would keep its size.
    yield helper.make_node("Slice", [f"{name}/reduced", first, last, last_axis], [f"{name}/largest"])
    # A token of zeros has the scale 0, which gives zeros again for any rounding of 0 / 0.
    yield helper.make_node("Mul", [f"{name}/largest", step], [f"{name}/scale"])
    yield helper.make_node("Reshape", [f"{name}/scale", last_axis], [f"{name}/scale_of_row"])
    yield helper.make_node("Shape", [f"{name}/scale_of_row"], [f"{name}/num_rows"])
    filled = numpy_helper.from_array(np.array([ZERO_POINT], dtype=np.uint8))
    yield helper.make_node("ConstantOfShape", [f"{name}/num_rows"], [f"{name}/zero_of_row"], value=filled)
    yield helper.make_node("Flatten", [name], [f"{name}/rows"], axis=-1)
    row = [f"{name}/rows", f"{name}/scale_of_row", f"{name}/zero_of_row"]
    yield helper.make_node("QuantizeLinear", row, [f"{name}/quantized_rows"], axis=0)
    yield helper.make_node("Shape", [name], [f"{name}/shape"])
    shaped = [f"{name}/quantized_rows", f"{name}/shape"]
    yield helper.make_node("Reshape", shaped, [f"{name}/quantized"], allowzero=1)
    return Integers(f"{name}/quantized", f"{name}/scale", zero_point)


@dataclass(frozen=True)
class Storage:
    limit: int  # largest distance of an integer from the zero point
    zero_point: int
    text: str


STORAGES: Mapping[Weights, Storage] = {
    # -64..64: the sum of two products fits into the 16 bits of processors without VNNI. The fastest.
    "int7": Storage(64, 0, "int8 per column, symmetric"),
    # Exact on every processor, with slower kernels where VNNI is missing.
    "uint8": Storage(FULL_LIMIT, ZERO_POINT, "uint8 per column, around 128"),
    # Sums saturate on processors without VNNI, and answers are then wrong.
    "int8": Storage(FULL_LIMIT, 0, "int8 per column, symmetric"),
}


def symmetric(
    matrix: npt.NDArray[np.float32], axis: int, limit: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return integers in -limit..limit and the scale that restores `matrix`: one per index of `axis`.

    The formula is onnxruntime's (`quant_utils.compute_scale_zp`, symmetric): scale = max |w| / limit, round to even.
    """
    largest = np.abs(matrix).max(axis=1 - axis, keepdims=True)
    scale = np.where(largest == 0, np.float32(1), largest / np.float32(limit)).astype(np.float32)
    integers = np.clip(np.rint(matrix / scale), -limit, limit).astype(np.int8)
    return integers, scale.reshape(-1)


@dataclass(frozen=True)
class Scheme:
    """How a graph is quantized: a scale for each token of an activation and for each output of a weight."""

    weights: Weights
    embeddings: bool  # whether lookups read 8-bit rows

    @property
    def storage(self) -> Storage:
        return STORAGES[self.weights]


@dataclass(frozen=True)
class Quantized:
    """An INT8 graph, with the number of its integer products and of its lookups of 8-bit rows."""

    model: ModelProto
    num_matmuls: int
    num_embeddings: int
    exact: tuple[str, ...]  # names of the MatMuls that stay in fp32 on request
    num_activations: int  # number of distinct tensors that integer products read
    static: Mapping[str, ActivationRange]  # ranges of those tensors that have a fixed scale, by name


def quantize(
    model: ModelProto, scheme: Scheme, *, exact: Collection[str] = (), ranges: Mapping[str, ActivationRange] = _NO_RANGE
) -> Quantized:
    """Return a copy of `model` with every MatMul by a constant matrix in INT8, and its embedding tables on request.

    Products of two activations (attention), Gemm and the nodes named in `exact` stay in fp32. An activation with a
    range in `ranges` gets a fixed scale from it, whatever `scheme` says about scales.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    rewriting = _Rewriting(copy, scheme, exact, ranges)
    set_nodes(copy.graph, (new for node in copy.graph.node for new in rewriting.rewritten(node)))
    copy.graph.initializer.extend(rewriting.constants.values())
    drop_unread(copy.graph)
    counts = op_counts(copy)
    assert counts["MatMulInteger"] + counts[PRODUCT] == rewriting.num_matmuls
    if counts[PRODUCT]:
        copy.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    read, fixed = rewriting.activations, {name: ranges[name] for name in rewriting.activations if name in ranges}
    return Quantized(copy, rewriting.num_matmuls, rewriting.num_embeddings, tuple(exact), len(read), fixed)


class _Rewriting:
    """State of a rewrite, so that a weight or an activation that is read twice is quantized once."""

    def __init__(
        self, model: ModelProto, scheme: Scheme, exact: Collection[str], ranges: Mapping[str, ActivationRange]
    ) -> None:
        self._scheme = scheme
        self._exact, self._ranges = exact, ranges
        self._biases = biases(model.graph)
        self._matrices = float_matrices(model.graph)
        self._transposed = transposed(model.graph, self._matrices)
        self._lookups = lookups(model.graph, self._matrices)
        self._tables = {node.input[0] for node in model.graph.node if self._lookups.intersection(node.output)}
        self._made: dict[str, Integers] = {}
        self._folded: set[str] = set()
        self.constants: dict[str, TensorProto] = {}
        self.activations: list[str] = []  # quantized activations in the order of the graph
        self.num_matmuls = 0
        self.num_embeddings = 0

    def rewritten(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield the nodes that replace `node`, or `node` itself if it stays."""
        if self.is_product_by_constant(node):
            if node.name not in self._exact:
                self.num_matmuls += 1
                yield from self._product(node)
            elif self._scheme.embeddings and self._transposed.get(node.input[1]) in self._tables:
                yield from self._exact_product_by_table(node)
            else:
                yield node
        elif self._scheme.embeddings and self._lookups.intersection(node.output):
            self.num_embeddings += 1
            yield from self._lookup(node)
        elif not self._folded.intersection(node.output):
            yield node

    def is_product_by_constant(self, node: NodeProto) -> bool:
        return node.op_type == "MatMul" and (node.input[1] in self._matrices or node.input[1] in self._transposed)

    def _product(self, node: NodeProto) -> Iterator[NodeProto]:
        left = yield from self._once(node.input[0], self._activation)
        if node.input[1] in self._matrices:
            right = self._weight(node.input[1], outputs_axis=1)
        else:
            right = yield from self._once(self._transposed[node.input[1]], self._transposed_weight)
        if node.input[0] in self._ranges:
            yield self._product_of_static(left, right, node)
        else:
            yield from self._product_of_tokens(left, right, node.output[0])

    def _activation(self, name: str) -> Making:
        self.activations.append(name)
        if name in self._ranges:
            return static(name, self._ranges[name], self._constant)
        return per_token(name, self._constant)

    def _product_of_static(self, left: Integers, right: Integers, node: NodeProto) -> NodeProto:
        """Return one operator for the product and the bias after it, which onnxruntime would not fuse by itself."""
        assert left.zero_point is not None
        inputs = [left.values, right.values, left.scale, right.scale, left.zero_point, right.zero_point or ""]
        bias, output, name = self._biases.get(node.output[0]), node.output[0], node.input[1]
        is_turned = name in self._transposed
        num_outputs = self._matrices[self._transposed[name] if is_turned else name].dims[0 if is_turned else 1]
        if bias and bias.size == num_outputs:
            self._folded.add(bias.output)
            inputs, output = [*inputs, bias.vector], bias.output
        return helper.make_node(PRODUCT, inputs, [output], domain=MICROSOFT)

    def _product_of_tokens(self, left: Integers, right: Integers, output: str) -> Iterator[NodeProto]:
        """Yield the product with scale 1, then apply the tokens' scales: the operator takes only one for the batch."""
        one = self._constant("quantization/one", np.array(1, dtype=np.float32))
        inputs = [left.values, right.values, one, right.scale, left.zero_point]
        inputs += [right.zero_point] if right.zero_point else []
        product = f"{output}/product"
        yield helper.make_node(PRODUCT, inputs, [product], domain=MICROSOFT)
        yield helper.make_node("Mul", [product, left.scale], [output])

    def _lookup(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield a lookup of 8-bit rows of an embedding table, each multiplied by its own scale."""
        name, *which = node.input
        table = self._stored_integers(name, 0, FULL_LIMIT)
        last_axis = self._constant("quantization/last_axis", np.array([-1], dtype=np.int64))
        row = f"{node.output[0]}/row"
        yield helper.make_node(node.op_type, [table.values, *which], [f"{row}_integers"])
        yield helper.make_node("Cast", [f"{row}_integers"], [row], to=TensorProto.FLOAT)
        yield helper.make_node(node.op_type, [table.scale, *which], [f"{row}_scale"])
        yield helper.make_node("Unsqueeze", [f"{row}_scale", last_axis], [f"{row}_scales"])
        yield helper.make_node("Mul", [row, f"{row}_scales"], list(node.output))

    def _weight(self, name: str, outputs_axis: int) -> Integers:
        storage = self._scheme.storage
        zero_point = None
        if storage.zero_point:
            zero_point = self._constant("quantization/zero_point", np.array(storage.zero_point, dtype=np.uint8))
        stored = self._stored_integers(name, outputs_axis, storage.limit, shift=storage.zero_point)
        return Integers(stored.values, stored.scale, zero_point)

    def _transposed_weight(self, name: str) -> Making:
        """Quantize a matrix that is stored as [N, K] and multiplied as [K, N]."""
        if name in self._tables:
            return (yield from self._vocabulary(name))
        stored = self._weight(name, outputs_axis=0)
        yield helper.make_node("Transpose", [stored.values], [f"{stored.values}/transposed"], perm=[1, 0])
        return Integers(f"{stored.values}/transposed", stored.scale, stored.zero_point)

    def _vocabulary(self, name: str) -> Making:
        """Yield the embedding table as a factor: signed 8 bits made unsigned, transposed; all folded at loading."""
        table = self._stored_integers(name, 0, FULL_LIMIT)
        zero_point = self._constant("quantization/zero_point", np.array(ZERO_POINT, dtype=np.uint8))
        shift = self._constant("quantization/shift", np.array(ZERO_POINT, dtype=np.int32))
        step = f"{table.values}/factor"
        yield helper.make_node("Cast", [table.values], [f"{step}_wide"], to=TensorProto.INT32)
        yield helper.make_node("Add", [f"{step}_wide", shift], [f"{step}_shifted"])
        yield helper.make_node("Cast", [f"{step}_shifted"], [f"{step}_unsigned"], to=TensorProto.UINT8)
        yield helper.make_node("Transpose", [f"{step}_unsigned"], [step], perm=[1, 0])
        return Integers(step, table.scale, zero_point)

    def _exact_product_by_table(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield a float product by the 8-bit rows of the lookups: the file holds the table once, as integers."""
        table = self._stored_integers(self._transposed[node.input[1]], 0, FULL_LIMIT)
        last_axis = self._constant("quantization/last_axis", np.array([-1], dtype=np.int64))
        step = f"{table.values}/floats"
        yield helper.make_node("Cast", [table.values], [f"{step}_unscaled"], to=TensorProto.FLOAT)
        yield helper.make_node("Unsqueeze", [table.scale, last_axis], [f"{step}_scale"])
        yield helper.make_node("Mul", [f"{step}_unscaled", f"{step}_scale"], [f"{step}_rows"])
        yield helper.make_node("Transpose", [f"{step}_rows"], [step], perm=[1, 0])
        yield helper.make_node("MatMul", [node.input[0], step], list(node.output), name=node.name)

    def _once(self, name: str, make: Callable[[str], Making]) -> Making:
        if name not in self._made:
            self._made[name] = yield from make(name)
        return self._made[name]

    def _stored_integers(self, name: str, axis: int, limit: int, shift: int = 0) -> Integers:
        quantized = Integers(f"{name}/{limit + shift}/{axis}", f"{name}/{limit + shift}/{axis}/scale")
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
    """Return the names of the MatMuls that `quantize` would put into INT8."""
    scheme = Scheme(weights="int7", embeddings=True)
    rewriting = _Rewriting(model, scheme, (), _NO_RANGE)
    return [node.name for node in model.graph.node if rewriting.is_product_by_constant(node)]
