"""How far activations reach, and how unlike each other tokens are in that: measured on real texts in fp32.

T tokens of all texts, K values of each: the channels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

from clozeline.artifacts.manifest import Manifest
from clozeline.exporting.answers import as_asked
from clozeline.exporting.graph import write_graph
from clozeline.inference.batching import padded
from clozeline.inference.package import open_graph

_HEADROOM = 1.05
"""Tokens of other texts reach a little further than those that were seen."""
_DIGITS = 5
"""Binary ones that an end is rounded to, outward: processors differ in the last bits of a float, files are not to."""
_LAST_AXIS = "ranges/last_axis"
_OF_TOKENS = (("ReduceMin", "{}/lowest_T"), ("ReduceMax", "{}/highest_T"))
_OF_CHANNELS = (
    ("ReduceMin", "{}/lowest_K"),
    ("ReduceMax", "{}/highest_K"),
    ("ReduceSumSquare", "{}/squares_K"),
)

Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Range:
    """Of one activation; 0 is in it."""

    low: float
    high: float
    ratio: float
    """How much coarser steps are that are fixed for all tokens than those of the typical token's own scale."""
    is_smoothed: bool = False
    """It is of what `smoothing` makes of the activation."""


@dataclass(frozen=True)
class Seen:
    """What one activation held."""

    lowest_T: Values
    highest_T: Values
    lowest_K: Values
    """0 or less, as the next is 0 or more."""
    highest_K: Values
    power_K: Values
    """Mean of the squares of the channel's values."""

    @property
    def typical_width(self) -> float:
        """From end to end of the typical (median) token's own scale, which has 0 in its middle. 0: nothing was seen."""
        reach_T = np.maximum(np.abs(self.lowest_T), np.abs(self.highest_T))
        return 2 * float(np.median(reach_T)) if len(reach_T) else 0.0


def measured(
    graph: ModelProto, names: Sequence[str], path: Path, manifest: Manifest, texts: Sequence[str]
) -> dict[str, Seen]:
    """What each tensor of `names` holds, over the tokens of all `texts`.

    Args:
        graph: fp32.
        names: of tensors whose last axis is what a token has.
        path: where a graph is written meanwhile, beside tokenizer.json.
        manifest: of the package, as far as it is known.
        texts: what is read, each alone: what padding would add is of no text.
    """
    write_graph(_with_extremes(graph, names), path)
    model = open_graph(path, manifest)
    asked = as_asked(model, texts)
    alone = (padded(asked, [position], manifest.special_tokens.pad_id) for position in range(len(asked)))
    extremes = [form.format(name) for name in names for _, form in (*_OF_TOKENS, *_OF_CHANNELS)]
    # With the others asked for too, nothing is left out.
    outputs = [output.name for output in manifest.outputs if output.dtype == "float32"]
    ran = [values[: len(extremes)] for _, values in model.run_batches(alone, *extremes, *outputs)]
    of_texts = iter(zip(*ran, strict=True))
    return {name: _seen(*(next(of_texts) for _ in (*_OF_TOKENS, *_OF_CHANNELS))) for name in names}


def range_of(seen: Seen) -> Range:
    """Of all its tokens."""
    low, high = ends(seen.lowest_T, seen.highest_T)
    return Range(outward(low), outward(high), (high - low) / seen.typical_width if seen.typical_width else math.inf)


def ends(lowest: npt.NDArray[np.floating], highest: npt.NDArray[np.floating]) -> tuple[float, float]:
    """The smallest and the largest of all values, and 0."""
    return float(lowest.min(initial=0.0)), float(highest.max(initial=0.0))


def outward(end: float) -> float:
    """An end of a range with room for other texts, in a few binary digits."""
    digits, exponent = math.frexp(abs(end) * _HEADROOM)
    return math.copysign(math.ldexp(math.ceil(digits * 2**_DIGITS) / 2**_DIGITS, exponent), end)


def _seen(
    lowest_T: Sequence[Values],
    highest_T: Sequence[Values],
    lowest_K: Sequence[Values],
    highest_K: Sequence[Values],
    squares_K: Sequence[Values],
) -> Seen:
    """Of each text."""
    num_tokens = sum(map(len, lowest_T))
    return Seen(
        np.concatenate(lowest_T),
        np.concatenate(highest_T),
        np.min(lowest_K, axis=0, initial=0.0),
        np.max(highest_K, axis=0, initial=0.0),
        np.sum(squares_K, axis=0) / max(num_tokens, 1),
    )


def _with_extremes(graph: ModelProto, names: Sequence[str]) -> ModelProto:
    """A copy with more outputs for each of `names`: of each token [T], and of each channel [K]."""
    copy = ModelProto()
    copy.CopyFrom(graph)
    copy.graph.initializer.append(numpy_helper.from_array(np.array([-1], dtype=np.int64), _LAST_AXIS))
    for name in names:
        tokens, channels = f"{name}/tokens", f"{name}/channels"
        copy.graph.node.append(helper.make_node("Flatten", [name], [tokens], axis=-1))
        copy.graph.node.append(helper.make_node("Transpose", [tokens], [channels], perm=[1, 0]))
        for rows, reductions in ((tokens, _OF_TOKENS), (channels, _OF_CHANNELS)):
            for operator, form in reductions:
                output = form.format(name)
                copy.graph.node.append(helper.make_node(operator, [rows, _LAST_AXIS], [f"{output}/kept"]))
                copy.graph.node.append(helper.make_node("Reshape", [f"{output}/kept", _LAST_AXIS], [output]))
                copy.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, [None]))
    return copy
