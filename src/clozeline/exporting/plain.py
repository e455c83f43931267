"""Normalization of the graph that torch's exporter writes to the few forms that the rest of the export reads.

Every linear layer becomes a MatMul by a transposed weight and an Add of its bias. The MatMul is named after the weight,
and its input after the MatMul. Source paths are removed.
"""

from collections import Counter
from collections.abc import Iterator

from onnx import ModelProto, NodeProto, helper

_SUFFIX = ".weight"
_OF_LINEAR = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}
"""Attributes of a Gemm that stands for a linear layer."""


def make_plain(model: ModelProto) -> None:
    """Rewrite linear layers in place without changing results, and name their products."""
    nodes = [new for node in model.graph.node for new in _linear(node)]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
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
    transposed = {
        node.output[0]: node.input[0]
        for node in model.graph.node
        if node.op_type == "Transpose" and node.input[0] in matrices
    }
    known = matrices | transposed
    products = (node for node in model.graph.node if node.op_type == "MatMul")
    return {node.name: known[node.input[1]] for node in products if node.input[1] in known}


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
