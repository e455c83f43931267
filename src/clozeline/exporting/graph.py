"""ONNX graphs as files. Equal graphs give equal bytes, and their axes have the names of the manifest."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto
from onnx.external_data_helper import (
    convert_model_to_external_data,
    load_external_data_for_model,
    uses_external_data,
    write_external_data_tensors,
)

from clozeline.artifacts.export.manifest import TensorSpec, data_file

MAX_PROTOBUF_BYTES = 2**31 - 2**24
"""Largest size of the weights in one graph file, and of one tensor in any file. Protobuf's limit is 2 GiB in all."""


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


def drop_unread(graph: GraphProto) -> None:
    """Remove the nodes and then the initializers that nothing reads."""
    nodes = list(graph.node)
    while True:
        read = num_readers(graph)
        live = [node for node in nodes if read.keys() & set(node.output)]
        if len(live) == len(nodes):
            break
        nodes = live
        graph.ClearField("node")
        graph.node.extend(nodes)
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    graph.ClearField("initializer")
    graph.initializer.extend(kept)


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
