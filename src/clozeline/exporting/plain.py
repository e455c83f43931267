"""What torch's exporter writes, brought to the few forms that the rest of the export reads.

Every linear layer is a MatMul by a weight that is transposed before it, and an Add of its bias; the node has the
weight's name, and what it reads is called after it. Nothing says where the code lies that was exported.
"""

from collections import Counter
from collections.abc import Iterator

from onnx import ModelProto, NodeProto, helper

_SUFFIX = ".weight"
_OF_LINEAR = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}
"""Attributes of a Gemm that is a linear layer."""


def make_plain(model: ModelProto) -> None:
    """Change `model`, which computes the same as before."""
    nodes = [new for node in model.graph.node for new in _linear(node)]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    _name_products(model)


def name_activations(model: ModelProto) -> None:
    """Call what a product reads after the first product that reads it."""
    weights, given = weight_of(model), {value.name for value in model.graph.input}
    names: dict[str, str] = {}
    for node in model.graph.node:
        if node.name in weights and node.input[0] not in given:
            names.setdefault(node.input[0], f"{node.name}/input")
    for node in model.graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]


def strip(model: ModelProto) -> None:
    """Remove what only people or the exporter read: source paths, and shapes on the way.

    With shapes there, ONNX Runtime 1.32 makes a SkipLayerNormalization of each sum before a norm, which takes four
    times as long on a CPU.
    """
    graph = model.graph
    graph.ClearField("value_info")
    for part in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def weight_of(model: ModelProto) -> dict[str, str]:
    """By the name of each MatMul by a weight, stored as it is or transposed: the weight's name."""
    matrices = {tensor.name: tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    transposed = {
        node.output[0]: node.input[0]
        for node in model.graph.node
        if node.op_type == "Transpose" and node.input[0] in matrices
    }
    known = matrices | transposed
    products = (node for node in model.graph.node if node.op_type == "MatMul")
    return {node.name: known[node.input[1]] for node in products if node.input[1] in known}


def _linear(node: NodeProto) -> Iterator[NodeProto]:
    """Of what has two axes the exporter makes a Gemm."""
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
    """By their weights; the second that reads the same one has a number."""
    weights, times = weight_of(model), Counter[str]()
    for node in model.graph.node:
        if node.name in weights:
            name = weights[node.name].removesuffix(_SUFFIX)
            times[name] += 1
            node.name = name if times[name] == 1 else f"{name}/{times[name]}"
