"""ONNX graphs as files: the same graph always gives the same bytes, and says what a caller needs to know."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto

from clozeline.inference.manifest import TensorSpec


def read_graph(path: Path) -> ModelProto:
    return onnx.load(path)


def write_graph(model: ModelProto, path: Path) -> None:
    """Check the graph and write it; equal graphs give equal bytes."""
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def declare(model: ModelProto, outputs: Sequence[TensorSpec]) -> None:
    """Name the axes of the outputs as in the manifest (the exporter leaves made-up names)."""
    specs = {spec.name: spec for spec in outputs}
    for output in model.graph.output:
        axes = output.type.tensor_type.shape.dim
        for axis, size in zip(axes, specs[output.name].shape, strict=True):
            axis.Clear()
            if isinstance(size, int):
                axis.dim_value = size
            else:
                axis.dim_param = size


def op_counts(model: ModelProto) -> Counter[str]:
    """How often each operator occurs, subgraphs included."""
    return Counter(node.op_type for graph in _graphs(model.graph) for node in graph.node)


def names_read(graph: GraphProto) -> set[str]:
    """Every tensor that a node reads (subgraphs included) or that the graph gives out."""
    read = {name for inner in _graphs(graph) for node in inner.node for name in node.input}
    return read | {output.name for inner in _graphs(graph) for output in inner.output}


def drop_unread(graph: GraphProto) -> None:
    """Remove nodes, then initializers, that nothing reads."""
    nodes = list(graph.node)
    while True:
        read = names_read(graph)
        live = [node for node in nodes if read & set(node.output)]
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
