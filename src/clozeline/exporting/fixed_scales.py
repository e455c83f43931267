"""Fixed scales of activations: their ranges, measured on real texts in fp32, and the smoothing of outlier channels.

A scale can be fixed where the range differs little between tokens, or after smoothing: outlier channels are divided by
powers of two, and the matching rows of the weights are multiplied by them. The product is the same to the bit, and the
difficulty of rounding moves from the activation to the weight (SmoothQuant, Xiao et al. 2023, section 4). The paper
gives every channel a factor, from the ranges of the channel and its weights. Here only channels beyond a limit get a
factor, and the limit with the least error is searched: on all-MiniLM-L6-v2 this keeps more answers than the paper's
factors, and rounding the factors costs nothing.

Shapes: T tokens of all texts; K inputs and N outputs of a linear layer, K also the channels of a token.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.exams import hide
from clozeline.exporting.graph import float_matrices, num_readers, set_nodes, transposed, write_graph
from clozeline.exporting.quantization import LEVELS, ActivationRange, Scheme
from clozeline.inference import language, open_model, package, tokenization
from clozeline.records.package import Manifest

# Factor on a range, because tokens of other texts reach a little further than those measured.
_HEADROOM = 1.05
# Binary digits to which an end is rounded outward: processors differ in the last bits of a float, files must not.
_DIGITS = 5
_LAST_AXIS = "ranges/last_axis"
_OF_TOKENS = (("ReduceMin", "{}/lowest_T"), ("ReduceMax", "{}/highest_T"))
_OF_CHANNELS = (("ReduceMin", "{}/lowest_K"), ("ReduceMax", "{}/highest_K"), ("ReduceSumSquare", "{}/squares_K"))

Values = npt.NDArray[np.float32]

# Name of the smoothed activation, which products read.
SMOOTHED = "{}/smoothed"
# Name of the vector by which channels are multiplied: 1 / factor.
_SHARE = "{}/share"
# Limits that are tried, as shares of the largest channel's range, down to 1/1024.
_LIMITS = 2.0 ** (-np.arange(81) / 8)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """Extremes and power of one activation over all texts."""

    lowest_T: Values
    highest_T: Values
    lowest_K: Values  # smallest value of each channel, at most 0; `highest_K` is at least 0
    highest_K: Values
    power_K: Values  # mean square of each channel

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
    model = package.open_graph(path, manifest)
    asked = as_asked(model, texts)
    alone = (open_model.padded(asked, [position], manifest.special_tokens.pad_id) for position in range(len(asked)))
    extremes = [form.format(name) for name in names for _, form in (*_OF_TOKENS, *_OF_CHANNELS)]
    # Request the other outputs too, so that every position is computed.
    outputs = [output.name for output in manifest.outputs if output.dtype == "float32"]
    ran = [values[: len(extremes)] for _, values in model.run_batches(alone, *extremes, *outputs)]
    of_texts = iter(zip(*ran, strict=True))
    return {name: _seen(*(next(of_texts) for _ in (*_OF_TOKENS, *_OF_CHANNELS))) for name in names}


def as_asked(model: open_model.OpenModel, texts: Sequence[str]) -> Sequence[tokenization.TokenizedText]:
    """Return `texts` as the input of a model of this task: with hidden tokens if it fills masks."""
    if isinstance(model, language.OpenEncoder):
        return [hide(text, model)[0] for text in model.tokenize(texts, truncate=True)]
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


@dataclass(frozen=True)
class Weight:
    """A matrix that only one product reads."""

    name: str  # name of the constant
    channels_axis: int  # axis of K: 0 if the constant is stored as [K, N], 1 if as [N, K]


@dataclass(frozen=True)
class Smoothing:
    """Factors for the K channels of one activation, and the range of the smoothed activation."""

    factor_K: Floats  # powers of two, at least 1, by which channels are divided
    # Range of the smoothed activation. Its ratio is that of the errors in the products: factors enlarge them again.
    reach: ActivationRange


def smoothable(graph: GraphProto, products: Collection[str]) -> dict[str, list[Weight]]:
    """Return, by activation, the weights of its MatMuls in `products`.

    An activation is left out if one of its weights has other readers, such as a vocabulary head tied to the embedding
    table, or shared layers.
    """
    readers = num_readers(graph)
    stored = {name for name in float_matrices(graph) if readers[name] == 1}
    weights = {name: Weight(name, 0) for name in stored} | {
        turned: Weight(name, 1) for turned, name in transposed(graph, stored).items() if readers[turned] == 1
    }
    found: dict[str, list[Weight | None]] = defaultdict(list)
    for node in graph.node:
        if node.name in products:
            found[node.input[0]].append(weights.get(node.input[1]))
    return {name: [it for it in of_name if it] for name, of_name in found.items() if all(of_name)}


def smoothed_at_no_cost(graph: GraphProto, products: Collection[str]) -> set[str]:
    """Return the activations that a LayerNormalization makes for MatMuls of `products` only: it absorbs the factors."""
    others = num_readers(graph) - Counter(node.input[0] for node in graph.node if node.name in products)
    made = (node.output[0] for node in graph.node if node.op_type == "LayerNormalization")
    return {name for name in made if not others[name]}


def matrices(graph: GraphProto, weights: Sequence[Weight]) -> list[Values]:
    """Return the matrix of each weight as [K, N]."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    return [np.moveaxis(numpy_helper.to_array(stored[weight.name]), weight.channels_axis, 0) for weight in weights]


def smoothing_of(seen: Seen, weights_KN: Sequence[Values], scheme: Scheme) -> Smoothing:
    """Return the smoothing with the least error in the products by `weights_KN`, given the measured activation.

    Rounding to steps of width d has the mean square error d² / 12, for activations and weights; the errors of
    different numbers are taken as independent.
    """
    tried = _tried(seen)
    factor_K = min(tried, key=lambda factor_K: sum(_errors(seen, weights_KN, scheme, factor_K)))
    low, high = ends(seen.lowest_K / factor_K, seen.highest_K / factor_K)
    power_K = _power(weights_KN)
    coarser = math.sqrt(np.average(factor_K**2, weights=power_K)) if power_K.any() else 1.0
    ratio = coarser * (high - low) / seen.typical_width if seen.typical_width else math.inf
    return Smoothing(factor_K, ActivationRange(outward(low), outward(high), ratio, is_smoothed=True))


def smoothed(model: ModelProto, factors: Mapping[str, Floats], products: Collection[str]) -> ModelProto:
    """Return a copy of `model` with equal results, in which the MatMuls of `products` read smoothed activations.

    Smoothing adds a Mul by a constant. A LayerNormalization that only these MatMuls read absorbs it in its scale and
    bias, at no cost.

    Args:
        model: fp32 graph.
        factors: `Smoothing.factor_K` by name of a `smoothable` activation.
        products: names of the MatMuls.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    weights = smoothable(graph, products)
    for name, factor_K in factors.items():
        _scale(graph, weights[name], factor_K)
        graph.initializer.append(numpy_helper.from_array((1 / factor_K).astype(np.float32), _SHARE.format(name)))
    set_nodes(graph, _nodes(graph, factors, products))
    return copy


def _tried(seen: Seen) -> Iterator[Floats]:
    """Yield, for each limit, the smallest factors that bring every channel within it."""
    reach_K = np.maximum(np.abs(seen.lowest_K), np.abs(seen.highest_K)).astype(np.float64)
    for limit in reach_K.max() * _LIMITS:
        digits_K, exponent_K = np.frexp(np.maximum(reach_K / limit, 1.0) if limit else np.ones_like(reach_K))
        yield np.ldexp(1.0, exponent_K - (digits_K == 0.5))


def _errors(seen: Seen, weights_KN: Sequence[Values], scheme: Scheme, factor_K: Floats) -> Iterator[float]:
    """Yield 12 × the mean square error in the products, summed over N, from the activation and from each weight."""
    low, high = ends(seen.lowest_K / factor_K, seen.highest_K / factor_K)
    yield ((high - low) / LEVELS) ** 2 * float(_power(weights_KN) @ factor_K**2)
    power, raised = float((seen.power_K / factor_K**2).sum()), factor_K > 1
    for weight_KN in weights_KN:
        raised_N = np.abs(weight_KN[raised] * factor_K[raised, None]).max(axis=0, initial=0.0)
        largest_N = np.maximum(np.abs(weight_KN).max(axis=0), raised_N)
        step_N = largest_N / scheme.storage.limit
        yield power * float((step_N**2).sum())


def _power(weights_KN: Sequence[Values]) -> Floats:
    """Return the sum of the squared weights of each channel."""
    power_K: Floats = np.sum([np.square(weight_KN, dtype=np.float64).sum(axis=1) for weight_KN in weights_KN], axis=0)
    return power_K


def _nodes(graph: GraphProto, names: Collection[str], products: Collection[str]) -> Iterator[NodeProto]:
    """Yield the nodes of the graph and those that smooth the activations `names`."""
    at_no_cost = smoothed_at_no_cost(graph, products).intersection(names)
    made: set[str] = set()
    for node in graph.node:
        if node.name in products and node.input[0] in names:
            if node.input[0] not in at_no_cost | made:
                made.add(node.input[0])
                yield _share(node.input[0], node.input[0], SMOOTHED.format(node.input[0]))
            node.input[0] = SMOOTHED.format(node.input[0])
        elif node.output[0] in at_no_cost:
            yield from _scaling_nodes(node)
        yield node


def _scaling_nodes(normalization: NodeProto) -> Iterator[NodeProto]:
    """Yield nodes that scale the vectors of the node, which is changed; onnxruntime folds them at loading."""
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
