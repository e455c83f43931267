"""Floats as the 8-bit integers that products read: by a scale of each token, of the batch, or a fixed one.

Each function gives the nodes that do it, and returns the names of what they make.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper, numpy_helper

from clozeline.exporting.ranges import Range

FULL_LIMIT = 127
ZERO_POINT = 128
LEVELS = 255
"""Steps between the ends of a range, as 8 bits have them."""

Constant = Callable[[str, npt.NDArray[np.generic]], str]
"""Stores a tensor under a name, once, and gives the name back."""


@dataclass(frozen=True)
class Integers:
    """Names of the tensors that stand for a tensor of floats: (integers - zero point) × scale."""

    values: str
    scale: str
    zero_point: str | None = None


Making = Generator[NodeProto, None, Integers]


def static(name: str, reach: Range, constant: Constant) -> Making:
    """By the range that was measured: one pass, and what lies outside becomes its nearest end."""
    scale, zero_point = scale_of(reach)
    known = [
        constant(f"{name}/scale", np.array(scale, dtype=np.float32)),
        constant(f"{name}/zero_point", np.array(zero_point, dtype=np.uint8)),
    ]
    yield helper.make_node("QuantizeLinear", [name, *known], [f"{name}/quantized"])
    return Integers(f"{name}/quantized", *known)


def scale_of(reach: Range) -> tuple[np.float32, int]:
    """Scale and zero point of the range in 0..255; 0 is one of the steps."""
    scale = np.float32((reach.high - reach.low) / LEVELS) or np.float32(1)
    return scale, round(-reach.low / float(scale))


def per_batch(name: str) -> Making:
    """All tokens of the batch, [B, L, K], by the range of the one that reaches furthest: one scale and zero point."""
    quantized = Integers(f"{name}/quantized", f"{name}/scale", f"{name}/zero_point")
    outputs = [quantized.values, quantized.scale, f"{name}/zero_point"]
    yield helper.make_node("DynamicQuantizeLinear", [name], outputs)
    return quantized


def per_token(name: str, constant: Constant) -> Making:
    """Each token by its own largest value: -127..127, shifted to be unsigned.

    `QuantizeLinear` has a scale for each row, but of a matrix only: the tokens of all texts are its rows meanwhile.
    """
    zero_point = constant("quantization/zero_point", np.array(ZERO_POINT, dtype=np.uint8))
    step = constant("quantization/step", np.array(1 / FULL_LIMIT, dtype=np.float32))
    first, last = (constant(f"quantization/{n}", np.array([n], dtype=np.int64)) for n in (0, 1))
    last_axis = constant("quantization/last_axis", np.array([-1], dtype=np.int64))
    yield helper.make_node("Abs", [name], [f"{name}/size"])
    yield helper.make_node("ReduceMax", [f"{name}/size", last_axis], [f"{name}/reduced"])
    # Of no rows (no mask in a batch) onnxruntime 1.31 reduces nothing, and the axis would keep its size.
    yield helper.make_node("Slice", [f"{name}/reduced", first, last, last_axis], [f"{name}/largest"])
    # A token of zeros has the scale 0, which makes zeros again of whatever 0 / 0 is rounded to.
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
