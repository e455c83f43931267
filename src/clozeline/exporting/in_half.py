"""A graph that computes in 16 bits, for processors that are made to: GPUs. A CPU takes longer with it.

What comes of weights is float16: lookups, products, attention. What is made of ids and masks alone (the angles of
rotary positions, additive masks) is computed in float32 and narrowed where it meets that; sums over many numbers and
what is divided by them stay float32, for they would leave the range of float16. Inputs and outputs are as they were.
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
"""Output of `watched`."""
_LIMIT = 32_752.0
"""Of what is narrowed: less than half of what float16 holds, so that an additive mask and a score stay finite."""
_LOWEST, _HIGHEST = "half/-limit", "half/limit"
_NARROW, _CLIPPED, _ABSOLUTE, _TOP = "{}/half", "{}/clipped", "{}/absolute", "{}/largest"
_EXACT = frozenset({"ReduceSum", "ReduceMean", "ReduceL2", "Pow", "Clip", "Min", "Max"})


def in_half(model: ModelProto) -> ModelProto:
    """A copy of `model`, of which all that comes of weights is computed in float16."""
    return _narrowed(model, TensorProto.FLOAT16)


def watched(model: ModelProto) -> ModelProto:
    """A copy of `model` that computes as `in_half` does, but in float32, with one more output, LARGEST: the largest
    absolute value of all that `in_half` narrows, with scores that an added mask has lowered by 32,752 among it.
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
    """`kind`: of numbers, that comes in the place of float32."""
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
    """Tensors of float32, by name."""
    of_weights: frozenset[str]
    """Those of them that depend on a weight, or are one."""

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
        """Whether it is computed in float16, or reads what is."""
        if not self.of_weights.intersection(node.input):
            return False
        if node.op_type == "Div":
            # By a sum; attention is divided by a constant.
            return node.input[1] not in self.of_weights
        return node.op_type not in _EXACT and not any(attribute.HasField("g") for attribute in node.attribute)


def _rewritten(node: NodeProto, known: _Known, kind: int) -> Iterator[NodeProto]:
    """The node, and behind it its outputs in the other precision; what nobody reads of them goes."""
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
