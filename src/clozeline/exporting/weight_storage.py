"""Storage of weights for integer products: one entry for each value of `weights` in `export.ladder`."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from clozeline.exporting.activations import FULL_LIMIT, ZERO_POINT

Weights = Literal["int7", "uint8", "int8"]


@dataclass(frozen=True)
class Storage:
    limit: int
    """Largest distance of an integer from the zero point."""
    zero_point: int
    text: str


STORAGES: Mapping[Weights, Storage] = MappingProxyType(
    {
        # -64..64: the sum of two products fits into the 16 bits of processors without VNNI. The fastest.
        "int7": Storage(64, 0, "int8 per column, symmetric"),
        # Exact on every processor, with slower kernels where VNNI is missing.
        "uint8": Storage(FULL_LIMIT, ZERO_POINT, "uint8 per column, around 128"),
        # Sums saturate on processors without VNNI, and answers are then wrong.
        "int8": Storage(FULL_LIMIT, 0, "int8 per column, symmetric"),
    }
)


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
