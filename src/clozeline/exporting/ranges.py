"""Ranges of activations, and how much they differ between tokens, measured on real texts in fp32.

Shapes: T tokens of all texts, K channels of a token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

from clozeline.exporting.exams import hide
from clozeline.exporting.graph import write_graph
from clozeline.inference.language import OpenEncoder
from clozeline.inference.open_model import OpenModel, padded
from clozeline.inference.package import open_graph
from clozeline.inference.tokenization import TokenizedText
from clozeline.records.package import Manifest

_HEADROOM = 1.05
"""Factor on a range, because tokens of other texts reach a little further than those measured."""
_DIGITS = 5
"""Binary digits to which an end is rounded outward: processors differ in the last bits of a float, files must not."""
_LAST_AXIS = "ranges/last_axis"
_OF_TOKENS = (("ReduceMin", "{}/lowest_T"), ("ReduceMax", "{}/highest_T"))
_OF_CHANNELS = (
    ("ReduceMin", "{}/lowest_K"),
    ("ReduceMax", "{}/highest_K"),
    ("ReduceSumSquare", "{}/squares_K"),
)

Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ActivationRange:
    """Range of one activation; it includes 0."""

    low: float
    high: float
    ratio: float
    """Ratio of the fixed step for all tokens to the step of a typical token's own scale."""
    is_smoothed: bool = False
    """Whether the range is that of the smoothed activation (see `smoothing`)."""


@dataclass(frozen=True)
class Seen:
    """Extremes and power of one activation over all texts."""

    lowest_T: Values
    highest_T: Values
    lowest_K: Values
    """Smallest value of each channel, at most 0; `highest_K` is at least 0."""
    highest_K: Values
    power_K: Values
    """Mean square of each channel."""

    @property
    def typical_width(self) -> float:
        """Width of the median token's own range, which is symmetric around 0; 0 if there were no tokens."""
        reach_T = np.maximum(np.abs(self.lowest_T), np.abs(self.highest_T))
        return 2 * float(np.median(reach_T)) if len(reach_T) else 0.0


def measured(
    graph: ModelProto, names: Sequence[str], path: Path, manifest: Manifest, texts: Sequence[str]
) -> dict[str, Seen]:
    """Measure each tensor of `names` over the tokens of all `texts`.

    Args:
        graph: fp32 graph.
        names: names of tensors whose last axis holds the channels of a token.
        path: temporary file for a graph, beside tokenizer.json.
        manifest: manifest of the package, as far as it is known.
        texts: texts to run, each alone, so that no padding is measured.
    """
    write_graph(_with_extremes(graph, names), path)
    model = open_graph(path, manifest)
    asked = as_asked(model, texts)
    alone = (padded(asked, [position], manifest.special_tokens.pad_id) for position in range(len(asked)))
    extremes = [form.format(name) for name in names for _, form in (*_OF_TOKENS, *_OF_CHANNELS)]
    # Request the other outputs too, so that every position is computed.
    outputs = [output.name for output in manifest.outputs if output.dtype == "float32"]
    ran = [values[: len(extremes)] for _, values in model.run_batches(alone, *extremes, *outputs)]
    of_texts = iter(zip(*ran, strict=True))
    return {name: _seen(*(next(of_texts) for _ in (*_OF_TOKENS, *_OF_CHANNELS))) for name in names}


def as_asked(model: OpenModel, texts: Sequence[str]) -> Sequence[TokenizedText]:
    """Return `texts` as the input of a model of this task: with hidden tokens if it fills masks."""
    if isinstance(model, OpenEncoder):
        return [hide(text, model).text for text in model.tokenize(texts, truncate=True)]
    return model.usual(texts).texts


def range_of(seen: Seen) -> ActivationRange:
    """Return the range over all tokens."""
    low, high = ends(seen.lowest_T, seen.highest_T)
    return ActivationRange(
        outward(low), outward(high), (high - low) / seen.typical_width if seen.typical_width else math.inf
    )


def ends(lowest: npt.NDArray[np.floating], highest: npt.NDArray[np.floating]) -> tuple[float, float]:
    """Return the smallest and the largest of all values and 0."""
    return float(lowest.min(initial=0.0)), float(highest.max(initial=0.0))


def outward(end: float) -> float:
    """Return an end of a range with headroom for other texts, rounded outward to a few binary digits."""
    digits, exponent = math.frexp(abs(end) * _HEADROOM)
    return math.copysign(math.ldexp(math.ceil(digits * 2**_DIGITS) / 2**_DIGITS, exponent), end)


def _seen(
    lowest_T: Sequence[Values],
    highest_T: Sequence[Values],
    lowest_K: Sequence[Values],
    highest_K: Sequence[Values],
    squares_K: Sequence[Values],
) -> Seen:
    """Combine the measurements of each text."""
    num_tokens = sum(map(len, lowest_T))
    return Seen(
        np.concatenate(lowest_T),
        np.concatenate(highest_T),
        np.min(lowest_K, axis=0, initial=0.0),
        np.max(highest_K, axis=0, initial=0.0),
        np.sum(squares_K, axis=0) / max(num_tokens, 1),
    )


def _with_extremes(graph: ModelProto, names: Sequence[str]) -> ModelProto:
    """Return a copy with additional outputs for each of `names`: one value per token [T] and per channel [K]."""
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
