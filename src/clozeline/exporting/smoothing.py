"""Activations a few of whose channels reach far beyond the others, made fit for one scale that is fixed for all tokens.

Those channels are divided by powers of two and their rows of the weights multiplied by them: the product is the same
to the bit, and what was hard to round has moved from the activation into the weight (Xiao et al. 2023, SmoothQuant,
section 4). There every channel has a factor, from what it and its weights reach. Here those beyond a limit have one,
and the limit is sought that leaves the least error: on all-MiniLM-L6-v2 more is left of the answers than with theirs,
and rounding the factors costs nothing.

K inputs and N outputs of a linear layer.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.activations import LEVELS
from clozeline.exporting.graph import num_readers
from clozeline.exporting.quantization import Scheme
from clozeline.exporting.ranges import Range, Seen, Values, ends, outward

SMOOTHED = "{}/smoothed"
"""Name of what products read in place of an activation."""
_SHARE = "{}/share"
"""Of the vector that channels are multiplied by."""
_LIMITS = 2.0 ** (-np.arange(81) / 8)
"""Shares of what the furthest channel reaches that are tried: down to a 1,024th."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Weight:
    """A matrix that one product reads, and nothing else."""

    name: str
    """Of the constant,"""
    channels_axis: int
    """which is stored as [K, N] (0) or as [N, K] (1)."""


@dataclass(frozen=True)
class Smoothing:
    """What the K channels of one activation are divided by, and the range of what comes of it."""

    factor_K: Floats
    """Powers of two, at least 1: channels are divided by them."""
    reach: Range
    """Of what is left. Its ratio is that of the errors in the products: a factor makes steps coarser again."""


def smoothable(graph: GraphProto, products: Collection[str]) -> dict[str, list[Weight]]:
    """By activation: the weights of those of its MatMuls that `products` names.

    An activation is left out if one of its weights has other readers, as a vocabulary that is the embedding table too,
    or layers that are one: they are in the file once.
    """
    readers = num_readers(graph)
    stored = {tensor.name for tensor in graph.initializer if _is_matrix(tensor) and readers[tensor.name] == 1}
    weights = {name: Weight(name, 0) for name in stored} | {
        node.output[0]: Weight(node.input[0], 1)
        for node in graph.node
        if node.op_type == "Transpose" and node.input[0] in stored and readers[node.output[0]] == 1
    }
    found: dict[str, list[Weight | None]] = defaultdict(list)
    for node in graph.node:
        if node.name in products:
            found[node.input[0]].append(weights.get(node.input[1]))
    return {name: [it for it in of_name if it] for name, of_name in found.items() if all(of_name)}


def smoothed_at_no_cost(graph: GraphProto, products: Collection[str]) -> set[str]:
    """Activations that a LayerNormalization makes for MatMuls of `products` alone: its own vectors do it."""
    others = num_readers(graph) - Counter(node.input[0] for node in graph.node if node.name in products)
    made = (node.output[0] for node in graph.node if node.op_type == "LayerNormalization")
    return {name for name in made if not others[name]}


def matrices(graph: GraphProto, weights: Sequence[Weight]) -> list[Values]:
    """Each as [K, N]."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    return [np.moveaxis(numpy_helper.to_array(stored[weight.name]), weight.channels_axis, 0) for weight in weights]


def smoothing_of(seen: Seen, weights_KN: Sequence[Values], scheme: Scheme) -> Smoothing:
    """The one that leaves the least error in the products by `weights_KN`, by what was seen of the activation.

    Rounding to steps of width d is off by d² / 12 in the mean square, of the activation as of a weight, and what is off
    in one number is independent of the others.
    """
    tried = _tried(seen)
    factor_K = min(tried, key=lambda factor_K: sum(_errors(seen, weights_KN, scheme, factor_K)))
    low, high = ends(seen.lowest_K / factor_K, seen.highest_K / factor_K)
    power_K = _power(weights_KN)
    coarser = math.sqrt(np.average(factor_K**2, weights=power_K)) if power_K.any() else 1.0
    ratio = coarser * (high - low) / seen.typical_width if seen.typical_width else math.inf
    return Smoothing(factor_K, Range(outward(low), outward(high), ratio, is_smoothed=True))


def smoothed(model: ModelProto, factors: Mapping[str, Floats], products: Collection[str]) -> ModelProto:
    """A copy of `model` that answers the same; MatMuls of `products` read the activations of `factors` smoothed.

    It takes a Mul by a constant before them. A LayerNormalization that they alone read does it by its own scale and
    bias, at no cost.

    Args:
        model: fp32.
        factors: as of a `Smoothing`, by activation; of those that are `smoothable`.
        products: names of the MatMuls.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    weights = smoothable(graph, products)
    for name, factor_K in factors.items():
        _scale(graph, weights[name], factor_K)
        graph.initializer.append(numpy_helper.from_array((1 / factor_K).astype(np.float32), _SHARE.format(name)))
    nodes = list(_nodes(graph, factors, products))
    graph.ClearField("node")
    graph.node.extend(nodes)
    return copy


def _is_matrix(tensor: TensorProto) -> bool:
    return tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2


def _tried(seen: Seen) -> Iterator[Floats]:
    """The least factors that bring every channel within a limit, of each limit."""
    reach_K = np.maximum(np.abs(seen.lowest_K), np.abs(seen.highest_K)).astype(np.float64)
    for limit in reach_K.max() * _LIMITS:
        digits_K, exponent_K = np.frexp(np.maximum(reach_K / limit, 1.0) if limit else np.ones_like(reach_K))
        yield np.ldexp(1.0, exponent_K - (digits_K == 0.5))


def _errors(seen: Seen, weights_KN: Sequence[Values], scheme: Scheme, factor_K: Floats) -> Iterator[float]:
    """What rounding leaves in the products, the activation's and each weight's: 12 mean squares, of all N together."""
    low, high = ends(seen.lowest_K / factor_K, seen.highest_K / factor_K)
    yield ((high - low) / LEVELS) ** 2 * float(_power(weights_KN) @ factor_K**2)
    power, raised = float((seen.power_K / factor_K**2).sum()), factor_K > 1
    for weight_KN in weights_KN:
        raised_N = np.abs(weight_KN[raised] * factor_K[raised, None]).max(axis=0, initial=0.0)
        largest_N = np.maximum(np.abs(weight_KN).max(axis=0), raised_N)
        step_N = largest_N / scheme.weight_limit
        yield power * float((step_N**2).sum() if scheme.per_channel else len(step_N) * step_N.max() ** 2)


def _power(weights_KN: Sequence[Values]) -> Floats:
    """Squares of a channel's weights."""
    power_K: Floats = np.sum([np.square(weight_KN, dtype=np.float64).sum(axis=1) for weight_KN in weights_KN], axis=0)
    return power_K


def _nodes(graph: GraphProto, names: Collection[str], products: Collection[str]) -> Iterator[NodeProto]:
    """Those that there are, and what smooths the activations `names`."""
    at_no_cost = smoothed_at_no_cost(graph, products).intersection(names)
    made: set[str] = set()
    for node in graph.node:
        if node.name in products and node.input[0] in names:
            if node.input[0] not in at_no_cost | made:
                made.add(node.input[0])
                yield _share(node.input[0], node.input[0], SMOOTHED.format(node.input[0]))
            node.input[0] = SMOOTHED.format(node.input[0])
        elif node.output[0] in at_no_cost:
            yield from _made_smooth(node)
        yield node


def _made_smooth(normalization: NodeProto) -> Iterator[NodeProto]:
    """What it takes before the node, which is changed: its vectors. Onnxruntime folds them when it opens the file."""
    name = normalization.output[0]
    normalization.output[0] = SMOOTHED.format(name)
    for place, vector in enumerate(normalization.input):
        if place and vector:
            normalization.input[place] = f"{SMOOTHED.format(name)}/{place}"
            yield _share(vector, name, normalization.input[place])


def _share(vector: str, name: str, output: str) -> NodeProto:
    return helper.make_node("Mul", [vector, _SHARE.format(name)], [output])


def _scale(graph: GraphProto, weights: Sequence[Weight], factor_K: Floats) -> None:
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for weight in weights:
        factors = np.expand_dims(factor_K.astype(np.float32), 1 - weight.channels_axis)
        scaled = numpy_helper.to_array(stored[weight.name]) * factors
        stored[weight.name].CopyFrom(numpy_helper.from_array(scaled, weight.name))
