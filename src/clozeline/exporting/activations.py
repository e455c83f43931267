"""Quantization of activations to 8 bits, with one scale for each token, or a fixed one.

Each generator yields the nodes of the graph and returns the names of the tensors that they make.
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
"""Number of steps between the ends of an 8-bit range."""

Constant = Callable[[str, npt.NDArray[np.generic]], str]
"""Function that stores a tensor under a name, once, and returns the name."""


@dataclass(frozen=True)
class Integers:
    """Names of the tensors that represent a float tensor as (integers - zero point) × scale."""

    values: str
    scale: str
    zero_point: str | None = None


Making = Generator[NodeProto, None, Integers]


def static(name: str, reach: Range, constant: Constant) -> Making:
    """Quantize by a measured range in one pass; values outside are clipped to its ends."""
    scale, zero_point = scale_of(reach)
    known = [
        constant(f"{name}/scale", np.array(scale, dtype=np.float32)),
        constant(f"{name}/zero_point", np.array(zero_point, dtype=np.uint8)),
    ]
    yield helper.make_node("QuantizeLinear", [name, *known], [f"{name}/quantized"])
    return Integers(f"{name}/quantized", *known)


def scale_of(reach: Range) -> tuple[np.float32, int]:
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
