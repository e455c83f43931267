"""ONNX graphs as files, and in the few forms that the rest of the export reads.

Equal graphs give equal bytes, and their axes have the names of the manifest. In the graph that torch's exporter writes,
every linear layer becomes a MatMul by a transposed weight and an Add of its bias. The MatMul is named after the weight,
and its input after the MatMul. Source paths are removed.

Shapes of tensors come from shape inference. Look-ups of rows of a table are found, and so are vectors that are added to
the result of one product only: an integer product can add them itself.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.external_data_helper import (
    convert_model_to_external_data,
    load_external_data_for_model,
    uses_external_data,
    write_external_data_tensors,
)

from clozeline.records.package import TensorSpec, data_file

# Largest size of the weights in one graph file, and of one tensor in any file. Protobuf's limit is 2 GiB in all.
MAX_PROTOBUF_BYTES = 2**31 - 2**24

# Largest number of elements of a constant that may be a shape; a larger constant is a weight.
_LARGEST_SIZE = 64
# Axes of a tensor: a size, a name that stands for the same size in the whole graph, or None if unknown.
Axes = tuple[int | str | None, ...]

_SUFFIX = ".weight"
# Attributes of a Gemm that stands for a linear layer.
_OF_LINEAR = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}


def read_graph(path: Path) -> ModelProto:
    """Read the graph with all its weights, also those in files beside it."""
    model = onnx.load(path, load_external_data=False)
    _take_in(model, path.parent)
    return model


def absorb_graph(path: Path) -> ModelProto:
    """Read the graph and delete the files beside it that hold its weights, because it is about to be rewritten."""
    places = {
        entry.value
        for tensor in onnx.load(path, load_external_data=False).graph.initializer
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    graph = read_graph(path)
    for place in places:
        (path.parent / place).unlink()
    return graph


def write_graph(model: ModelProto, path: Path) -> None:
    """Check the graph and write it; equal graphs give equal bytes.

    Weights that are too large for one file go into a second one beside it, `data_file`.
    """
    data = path.with_name(data_file(path.name))
    data.unlink(missing_ok=True)
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) < MAX_PROTOBUF_BYTES:
        onnx.checker.check_model(model, full_check=True)
        path.write_bytes(model.SerializeToString(deterministic=True))
        return
    convert_model_to_external_data(model, all_tensors_to_one_file=True, location=data.name)
    data.touch()  # onnx would create it readable by its owner only; a server in a container is another user
    write_external_data_tensors(model, str(path.parent))
    path.write_bytes(model.SerializeToString(deterministic=True))
    onnx.checker.check_model(str(path), full_check=True)
    _take_in(model, path.parent)


def _take_in(model: ModelProto, folder: Path) -> None:
    load_external_data_for_model(model, str(folder))
    for tensor in model.graph.initializer:
        tensor.ClearField("data_location")  # onnx sets it to the default, which would change the bytes


def size_of(path: Path) -> int:
    """Return the size in bytes of the graph file `path` and of the weights beside it."""
    data = path.with_name(data_file(path.name))
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)


def remove_graph(path: Path) -> None:
    """Delete the graph file `path` and its weights; missing files are ignored."""
    path.unlink(missing_ok=True)
    path.with_name(data_file(path.name)).unlink(missing_ok=True)


def declare(model: ModelProto, outputs: Sequence[TensorSpec]) -> None:
    """Name the axes of the outputs as in the manifest, in place of the exporter's generated names."""
    specs = {spec.name: spec for spec in outputs}
    for output in model.graph.output:
        axes = output.type.tensor_type.shape.dim
        for axis, size in zip(axes, specs[output.name].shape, strict=True):
            axis.Clear()
            if isinstance(size, int):
                axis.dim_value = size
            else:
                axis.dim_param = size


def name_axes(values: Iterable[ValueInfoProto], names: Mapping[str, Mapping[int, str]]) -> None:
    """Name the axes of inputs, in place of the exporter's generated names; `names` is by input and axis."""
    for value in values:
        for axis, name in names[value.name].items():
            value.type.tensor_type.shape.dim[axis].dim_param = name


def op_counts(model: ModelProto) -> Counter[str]:
    """Count the nodes of each operator, subgraphs included."""
    return Counter(node.op_type for graph in _graphs(model.graph) for node in graph.node)


def num_readers(graph: GraphProto) -> Counter[str]:
    """Count, for each tensor, the nodes that read it (subgraphs included) and the graph outputs that are it."""
    read = Counter(name for inner in _graphs(graph) for node in inner.node for name in node.input)
    return read + Counter(output.name for inner in _graphs(graph) for output in inner.output)


def set_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Replace the nodes by `nodes`, which may be made from them."""
    made = list(nodes)
    graph.ClearField("node")
    graph.node.extend(made)


def drop_unread(graph: GraphProto) -> None:
    """Remove the nodes and then the initializers that nothing reads."""
    while True:
        read = num_readers(graph)
        live = [node for node in graph.node if read.keys() & set(node.output)]
        if len(live) == len(graph.node):
            break
        set_nodes(graph, live)
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    graph.ClearField("initializer")
    graph.initializer.extend(kept)


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def inferred_axes(model: ModelProto) -> Mapping[str, Axes]:
    """Return the axes of each tensor except the weights, by name."""
    inferred = onnx.shape_inference.infer_shapes(outline(model), data_prop=True).graph
    values = [*inferred.value_info, *inferred.input, *inferred.output]
    return {value.name: tuple(_size(axis) for axis in value.type.tensor_type.shape.dim) for value in values}


def outline(model: ModelProto) -> ModelProto:
    """Return a copy without weights: shape inference and memory have no room for a second copy of a large model."""
    graph = model.graph
    tensors = [
        tensor
        if np.prod(tensor.dims) <= _LARGEST_SIZE
        else TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        for tensor in graph.initializer
    ]
    outline = helper.make_graph(graph.node, graph.name, graph.input, graph.output, tensors, value_info=graph.value_info)
    return helper.make_model(outline, opset_imports=model.opset_import, ir_version=model.ir_version)


def _size(axis: "onnx.TensorShapeProto.Dimension") -> int | str | None:
    if axis.HasField("dim_value"):
        return int(axis.dim_value)
    return str(axis.dim_param) if axis.dim_param else None


def make_plain(model: ModelProto) -> None:
    """Rewrite linear layers in place without changing results, and name their products."""
    set_nodes(model.graph, (new for node in model.graph.node for new in _linear(node)))
    _name_products(model)


def name_activations(model: ModelProto) -> None:
    """Name the input of each product after the first product that reads it."""
    weights, given = weight_of(model), {value.name for value in model.graph.input}
    names: dict[str, str] = {}
    for node in model.graph.node:
        if node.name in weights and node.input[0] not in given:
            names.setdefault(node.input[0], f"{node.name}/input")
    for node in model.graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]


def strip(model: ModelProto) -> None:
    """Remove source paths and the shapes of intermediate tensors, which only debugging and the exporter use.

    Given those shapes, ONNX Runtime 1.32 fuses each sum before a norm into a SkipLayerNormalization, which takes four
    times as long on a CPU.
    """
    graph = model.graph
    graph.ClearField("value_info")
    for part in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def weight_of(model: ModelProto) -> dict[str, str]:
    """Map the name of each MatMul to the name of the weight that it reads, directly or transposed."""
    matrices = {tensor.name: tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    known = matrices | transposed(model.graph, matrices)
    products = (node for node in model.graph.node if node.op_type == "MatMul")
    return {node.name: known[node.input[1]] for node in products if node.input[1] in known}


def float_matrices(graph: GraphProto) -> dict[str, TensorProto]:
    """Return the constant float matrices by name."""
    return {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2
    }


def transposed(graph: GraphProto, names: Container[str]) -> dict[str, str]:
    """Map the name of each transposed matrix to the name of its constant, one of `names`."""
    return {one.output[0]: one.input[0] for one in graph.node if one.op_type == "Transpose" and one.input[0] in names}


def _linear(node: NodeProto) -> Iterator[NodeProto]:
    """Yield a MatMul and an Add for a Gemm, which the exporter writes for inputs with two axes."""
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type != "Gemm" or given != _OF_LINEAR:
        yield node
        return
    values, weight, *bias = node.input
    turned, product = f"{node.name}/weight", f"{node.name}/product" if bias else node.output[0]
    yield helper.make_node("Transpose", [weight], [turned], name=turned, perm=[1, 0])
    yield helper.make_node("MatMul", [values, turned], [product], name=f"{node.name}/product")
    if bias:
        yield helper.make_node("Add", [product, *bias], list(node.output), name=node.name)


def _name_products(model: ModelProto) -> None:
    """Name products after their weights, with a number from the second that reads the same weight."""
    weights, times = weight_of(model), Counter[str]()
    for node in model.graph.node:
        if node.name in weights:
            name = weights[node.name].removesuffix(_SUFFIX)
            times[name] += 1
            node.name = name if times[name] == 1 else f"{name}/{times[name]}"


def lookups(graph: GraphProto, tables: Container[str]) -> frozenset[str]:
    """Return the names of the tensors that are looked up in `tables`: rows by index, or a slice of rows (positions)."""
    integers = (tensor for tensor in graph.initializer if tensor.data_type == TensorProto.INT64)
    first = {tensor.name for tensor in integers if not numpy_helper.to_array(tensor).any()}
    read = [node for node in graph.node if node.input and node.input[0] in tables]
    return frozenset(node.output[0] for node in read if _selects_rows(node, first))


def _selects_rows(node: NodeProto, first: Container[str]) -> bool:
    if node.op_type == "Gather":
        return not any(attribute.i for attribute in node.attribute if attribute.name == "axis")
    return node.op_type == "Slice" and len(node.input) > 3 and node.input[3] in first


@dataclass(frozen=True)
class Bias:
    """A constant vector [N] that an Add node adds to every row [..., N] of a product."""

    vector: str  # name of the constant
    size: int  # N
    output: str  # name of the sum


def biases(graph: GraphProto) -> dict[str, Bias]:
    """Return the bias of each tensor that only an Add of a constant vector reads, by the tensor's name."""
    readers = num_readers(graph)
    sizes = {
        tensor.name: tensor.dims[0]
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 1
    }
    return {
        name: Bias(vector, sizes[vector], node.output[0])
        for node in graph.node
        if node.op_type == "Add"
        for name, vector in _inputs_in_both_orders(node)
        if vector in sizes and name not in sizes and readers[name] == 1
    }


def _inputs_in_both_orders(add: NodeProto) -> Iterator[tuple[str, str]]:
    first, second = add.input
    yield first, second
    yield second, first
