"""How far activations reach, and how unlike each other tokens are in that: measured on real texts in fp32.

T tokens of all texts, K values of each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

from clozeline.exporting.answers import as_asked
from clozeline.exporting.graph import over_last_axis, write_graph
from clozeline.inference.batching import padded
from clozeline.inference.manifest import Manifest
from clozeline.inference.package import open_graph

_HEADROOM = 1.05
"""Tokens of other texts reach a little further than those that were seen."""
_DIGITS = 5
"""Binary ones that an end is rounded to, outward: processors differ in the last bits of a float, files are not to."""
_LOWEST, _HIGHEST = "{}/lowest", "{}/highest"
_LAST_AXIS = "ranges/last_axis"

Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Range:
    """Of one activation; 0 is in it."""

    low: float
    high: float
    ratio: float
    """How much coarser steps are that are fixed for all tokens than those of the typical token's own scale."""


def measured_ranges(
    graph: ModelProto, names: Sequence[str], path: Path, manifest: Manifest, texts: Sequence[str]
) -> dict[str, Range]:
    """The range of each tensor of `names`, over the tokens of all `texts`.

    Args:
        graph: fp32.
        names: of tensors whose last axis is what a token has.
        path: where a graph is written meanwhile, beside tokenizer.json.
        manifest: of the package, as far as it is known.
        texts: what is read, each alone: what padding would add is of no text.
    """
    write_graph(_with_ends(graph, names), path)
    model = open_graph(path, manifest)
    asked = as_asked(model, texts)
    alone = (padded(asked, [position], manifest.special_tokens.pad_id) for position in range(len(asked)))
    ends = [end.format(name) for name in names for end in (_LOWEST, _HIGHEST)]
    # With the others asked for too, nothing is left out.
    outputs = [output.name for output in manifest.outputs if output.dtype == "float32"]
    ran = [values[: len(ends)] for _, values in model.run_batches(alone, *ends, *outputs)]
    found = [np.concatenate([values[place] for values in ran]) for place in range(len(ends))]
    return {name: range_of(*pair) for name, pair in zip(names, zip(found[::2], found[1::2], strict=True), strict=True)}


def range_of(lowest_T: Values, highest_T: Values) -> Range:
    """Of the smallest and the largest value of each token."""
    low, high = min(lowest_T.min(initial=0.0), 0.0), max(highest_T.max(initial=0.0), 0.0)
    # A token's own scale has 0 in its middle.
    typical = 2 * float(np.median(np.maximum(np.abs(lowest_T), np.abs(highest_T)))) if len(lowest_T) else 0.0
    return Range(_outward(low), _outward(high), float(high - low) / typical if typical else math.inf)


def _outward(end: float) -> float:
    digits, exponent = math.frexp(abs(end) * _HEADROOM)
    return math.copysign(math.ldexp(math.ceil(digits * 2**_DIGITS) / 2**_DIGITS, exponent), end)


def _with_ends(graph: ModelProto, names: Sequence[str]) -> ModelProto:
    """A copy with two more outputs [T] for each of `names`: the smallest and the largest value of each token."""
    copy = ModelProto()
    copy.CopyFrom(graph)
    copy.graph.initializer.append(numpy_helper.from_array(np.array([-1], dtype=np.int64), _LAST_AXIS))
    opset = graph.opset_import[0].version
    for name in names:
        for operator, form in (("ReduceMin", _LOWEST), ("ReduceMax", _HIGHEST)):
            end = form.format(name)
            copy.graph.node.append(over_last_axis(operator, name, f"{end}/kept", _LAST_AXIS, opset))
            copy.graph.node.append(helper.make_node("Reshape", [f"{end}/kept", _LAST_AXIS], [end]))
            copy.graph.output.append(helper.make_tensor_value_info(end, TensorProto.FLOAT, [None]))
    return copy
