"""Float16 graphs for GPUs. They are slower on a CPU.

Everything that depends on weights is float16: lookups, products, attention. Tensors of ids and masks alone (the angles
of rotary positions, additive masks) are computed in float32 and narrowed where they meet it. Sums over many numbers and
divisions by them stay float32, because they would leave the range of float16. Inputs and outputs keep their types.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.attention import show_scores
from clozeline.exporting.axes import outline
from clozeline.exporting.graph import drop_unread

LARGEST_HALF = float(np.finfo(np.float16).max)
LARGEST = "half/largest"
"""Additional output of `watched`."""
_LIMIT = 32_752.0
"""Limit of narrowed values: less than half of the largest float16, so that the sum of a mask and a score is finite."""
_LOWEST, _HIGHEST = "half/-limit", "half/limit"
_NARROW, _CLIPPED, _ABSOLUTE, _TOP = "{}/half", "{}/clipped", "{}/absolute", "{}/largest"
_EXACT = frozenset({"ReduceSum", "ReduceMean", "ReduceL2", "Pow", "Clip", "Min", "Max"})


def in_half(model: ModelProto) -> ModelProto:
    """Return a copy of `model` that computes everything that depends on weights in float16."""
    return _narrowed(model, TensorProto.FLOAT16)


def watched(model: ModelProto) -> ModelProto:
    """Return the same copy of `model` as `in_half`, but in float32 and with the additional output LARGEST.

    LARGEST is the largest absolute value of the tensors that `in_half` narrows, including attention scores that an
    additive mask lowers by 32,752.
    """
    made = _narrowed(model, TensorProto.FLOAT)
    ending = _NARROW.format("")
    show_scores(made.graph, _NARROW, {name for node in made.graph.node for name in node.input if name.endswith(ending)})
    names = [name for node in made.graph.node for name in node.output if name.endswith(ending)]
    for name in names:
        absolute = _ABSOLUTE.format(name)
        made.graph.node.append(helper.make_node("Abs", [name], [absolute]))
        made.graph.node.append(helper.make_node("ReduceMax", [absolute], [_TOP.format(name)], keepdims=0))
    made.graph.node.append(helper.make_node("Max", [_TOP.format(name) for name in names], [LARGEST]))
    made.graph.output.append(helper.make_tensor_value_info(LARGEST, TensorProto.FLOAT, []))
    return made


def _narrowed(model: ModelProto, kind: int) -> ModelProto:
    """Return a copy of `model` in which the ONNX type `kind` replaces float32 where that is allowed."""
    known = _Known.of(model)
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    graph.ClearField("node")
    graph.ClearField("value_info")
    graph.node.extend(new for node in model.graph.node for new in _rewritten(node, known, kind))
    graph.initializer.extend(
        numpy_helper.from_array(np.array(limit, dtype=np.float32), name)
        for name, limit in ((_LOWEST, -_LIMIT), (_HIGHEST, _LIMIT))
    )
    graph.initializer.extend(
        _narrowed_tensor(tensor, kind) for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT
    )
    drop_unread(graph)
    return made


@dataclass(frozen=True)
class _Known:
    floats: frozenset[str]
    """Names of the float32 tensors."""
    of_weights: frozenset[str]
    """Names of the float32 tensors that are a weight or depend on one."""

    @classmethod
    def of(cls, model: ModelProto) -> "_Known":
        inferred = onnx.shape_inference.infer_shapes(outline(model), data_prop=True).graph
        values = [*inferred.value_info, *inferred.input, *inferred.output]
        floats = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
        tensors = [tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT]
        floats |= {tensor.name for tensor in tensors}
        of_weights = {tensor.name for tensor in tensors if sum(size > 1 for size in tensor.dims) > 1}
        for node in model.graph.node:
            if of_weights.intersection(node.input):
                of_weights |= floats.intersection(node.output)
        return cls(frozenset(floats), frozenset(of_weights))

    def is_half(self, node: NodeProto) -> bool:
        """Whether the node reads its float inputs as float16."""
        if not self.of_weights.intersection(node.input):
            return False
        if node.op_type == "Div":
            # A sum depends on weights and stays float32; attention is divided by a constant.
            return node.input[1] not in self.of_weights
        return node.op_type not in _EXACT and not any(attribute.HasField("g") for attribute in node.attribute)


def _rewritten(node: NodeProto, known: _Known, kind: int) -> Iterator[NodeProto]:
    """Yield the node, then casts of its outputs to the other precision; unread casts are dropped later."""
    floats = [name for name in node.output if name in known.floats]
    if not known.is_half(node):
        yield node
        for name in floats:
            clipped = _CLIPPED.format(name)
            yield helper.make_node("Clip", [name, _LOWEST, _HIGHEST], [clipped])
            yield helper.make_node("Cast", [clipped], [_NARROW.format(name)], to=kind)
        return
    half = NodeProto()
    half.CopyFrom(node)
    for names in (half.input, half.output):
        names[:] = [_NARROW.format(name) if name in known.floats else name for name in names]
    if node.op_type == "Cast" and floats:
        half.attribute[0].i = kind
    yield half
    for name in floats:
        yield helper.make_node("Cast", [_NARROW.format(name)], [name], to=TensorProto.FLOAT)


def _narrowed_tensor(tensor: TensorProto, kind: int) -> TensorProto:
    values = np.clip(numpy_helper.to_array(tensor), -_LIMIT, _LIMIT)
    return numpy_helper.from_array(values.astype(helper.tensor_dtype_to_np_dtype(kind)), _NARROW.format(tensor.name))
