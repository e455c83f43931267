"""The ladder: INT8 schemes are tried in order until one passes its checks; fp32 serves if none does.

A scheme computes the scales of activations at run time. The one that passes is then tried with fixed scales, which are
faster, for activations whose range varies little between tokens or can be smoothed; they are kept if nothing is lost.
Sensitivity is the error that INT8 causes in each product with a weight matrix.

Shapes: A answers, V vocabulary or classes.
"""

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from clozeline.exporting.exams import logits
from clozeline.exporting.fixed_scales import (
    SMOOTHED,
    Seen,
    as_asked,
    matrices,
    measured,
    range_of,
    smoothable,
    smoothed,
    smoothed_at_no_cost,
    smoothing_of,
)
from clozeline.exporting.graph import remove_graph, write_graph
from clozeline.exporting.proof import Proof, lacking
from clozeline.exporting.quantization import FULL_LIMIT, Quantized, Scheme, products_by_constants, quantize
from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import open_graph
from clozeline.inference.tokenization import TokenizedText
from clozeline.params.delivery import ExportParams, RungParams
from clozeline.records.package import FILES, Manifest, QuantizationScheme, Rung

_LOG = logging.getLogger(__name__)

_SENSITIVITY_TEXTS = 16
"""Number of texts for the sensitivity measurement, which runs a graph for each product on all of them."""


def worst_first(
    graph: ModelProto, path: Path, manifest: Manifest, scheme: Scheme, head: Collection[str], texts: Sequence[str]
) -> list[str]:
    """Return the names of the MatMuls that `scheme` quantizes, sorted by the logit error of each alone, largest first.

    The error is the mean square of the change of a logit if only that MatMul is quantized. Errors of different layers
    are nearly independent, so that they add up. The embedding tables stay exact.

    Args:
        graph: fp32 graph.
        path: where trial graphs are written, beside tokenizer.json and the file of `graph`.
        manifest: manifest of the package, as far as it is known.
        scheme: how a MatMul is quantized.
        head: names of the MatMuls that stay in fp32 in any case.
        texts: texts to run; not those of the exam.
    """
    fp32 = open_graph(path.with_name(FILES.fp32), manifest)
    asked = as_asked(fp32, texts)
    exact = list(logits(fp32, asked))
    names = [name for name in products_by_constants(graph) if name not in head]
    errors = {}
    for name in names:
        alone = quantize(graph, replace(scheme, embeddings=False), exact=[*head, *(n for n in names if n != name)])
        write_graph(alone.model, path)
        errors[name] = _mean_square(open_graph(path, manifest), asked, exact)
        _LOG.debug("%s alone in INT8 moves the logits by %.3g (mean square)", name, errors[name])
    return sorted(names, key=lambda name: -errors[name])


def _mean_square(model: OpenModel, texts: Sequence[TokenizedText], exact: Sequence[npt.NDArray[np.float32]]) -> float:
    """Return the mean square difference from `exact`, less a shift common to an answer's logits, which is harmless."""
    differences = [ours_AV - exact_AV for ours_AV, exact_AV in zip(logits(model, texts), exact, strict=True)]
    return float(np.mean(np.concatenate([moved_AV.var(axis=1) for moved_AV in differences]), dtype=np.float64))


@dataclass(frozen=True)
class Passed:
    """A scheme that was tried, with its graph."""

    rung: Rung
    quantized: Quantized
    """The quantized graph."""


@dataclass(frozen=True)
class Climbed:
    """Result of a ladder."""

    rungs: tuple[Rung, ...]
    """Rungs in the order in which they were tried."""
    served: Passed | None
    """Scheme whose graph is in the file; None if no scheme passed, and then there is no file."""


class Ladder:
    """The ladder of params.yaml, applied to one model."""

    def __init__(
        self, graph: ModelProto, folder: Path, manifest: Manifest, head: Sequence[str], params: ExportParams
    ) -> None:
        """Prepare the ladder without measuring anything.

        Args:
            graph: fp32 graph; `folder` also holds it, beside tokenizer.json.
            folder: where INT8 graphs are written.
            manifest: manifest of the package, as far as it is known.
            head: MatMuls that stay in fp32 in any scheme.
            params: the section `export` of params.yaml.
        """
        self._graph, self._path, self._manifest, self._params = graph, folder / FILES.int8, manifest, params
        self._head = tuple(head)
        self._names = [name for name in products_by_constants(graph) if name not in head]
        self._worst: dict[Scheme, list[str]] = {}

    def climb(self, proof: Proof, calibration: Sequence[str]) -> Climbed:
        """Try each rung until one passes, and leave its graph in the folder.

        Args:
            proof: the measurements and limits for each rung.
            calibration: texts on which ranges of activations are measured, and the worst products if a rung excludes
                some; not those of `proof`.
        """
        rungs: list[Rung] = []
        for params in self._params.ladder:
            quantized = self._dynamic(params, calibration)
            if self._described(params, quantized) in [rung.scheme for rung in rungs]:
                continue  # With few products, two shares can give the same number.
            rungs.append(self._shown(proof, params, quantized))
            if rungs[-1].is_passed:
                dynamic = Passed(rungs[-1], quantized)
                tried = list(self._with_fixed_scales(proof, params, dynamic, calibration))
                return Climbed((*rungs, *(it.rung for it in tried)), self._kept(dynamic, tried))
            if lacking(rungs[-1]):
                break
        remove_graph(self._path)
        return Climbed(tuple(rungs), None)

    def _with_fixed_scales(
        self, proof: Proof, params: RungParams, dynamic: Passed, calibration: Sequence[str]
    ) -> Iterator[Passed]:
        """Yield each scheme with fixed scales that is tried; one that passes is the last."""
        names = dict.fromkeys(node.input[0] for node in self._graph.graph.node if node.name in self._names)
        given = self._graph, list(names), self._path, self._manifest
        seen = measured(*given, calibration) if self._params.static_ratios else {}
        tried = [dynamic.quantized.static]
        for ratio in self._params.static_ratios:
            quantized = self._fixed(params, dynamic.quantized.exact, seen, ratio)
            if quantized.static in tried:
                continue
            tried.append(quantized.static)
            rung = self._shown(proof, params, quantized, reference=dynamic.rung)
            yield Passed(rung, quantized)
            if rung.is_passed:
                return

    def _kept(self, dynamic: Passed, tried: Sequence[Passed]) -> Passed:
        if tried and tried[-1].rung.is_passed:
            return tried[-1]
        write_graph(dynamic.quantized.model, self._path)
        return dynamic

    def _shown(self, proof: Proof, params: RungParams, quantized: Quantized, reference: Rung | None = None) -> Rung:
        write_graph(quantized.model, self._path)
        rung = proof.rung(self._path, self._described(params, quantized), reference)
        _LOG.info("INT8 scheme: %s", describe(rung))
        return rung

    def _fixed(self, params: RungParams, exact: Sequence[str], seen: Mapping[str, Seen], limit: float) -> Quantized:
        """Quantize with fixed scales for activations whose ratio is at most `limit`; smooth those that need it, and
        those where it is free.
        """
        scheme, products = scheme_of(params), [name for name in self._names if name not in exact]
        ranges = {name: reach for name, it in seen.items() if (reach := range_of(it)).ratio <= limit}
        as_they_are = ranges.keys() - smoothed_at_no_cost(self._graph.graph, products)
        smoothings = {
            name: smoothing_of(seen[name], matrices(self._graph.graph, weights), scheme)
            for name, weights in smoothable(self._graph.graph, products).items()
            if name not in as_they_are
        }
        enough = {name: it for name, it in smoothings.items() if it.reach.ratio <= limit and it.factor_K.max() > 1}
        graph = smoothed(self._graph, {name: it.factor_K for name, it in enough.items()}, products)
        ranges |= {SMOOTHED.format(name): it.reach for name, it in enough.items()}
        return quantize(graph, scheme, exact=exact, ranges=ranges)

    def _dynamic(self, params: RungParams, calibration: Sequence[str]) -> Quantized:
        num_exact = math.ceil(params.exact_share * len(self._names))
        worst = self._worst_of(scheme_of(params), calibration)[:num_exact] if num_exact else []
        return quantize(self._graph, scheme_of(params), exact=(*self._head, *worst))

    def _worst_of(self, scheme: Scheme, calibration: Sequence[str]) -> list[str]:
        """Return the products, worst first, measured once for each kind of weights and with exact embeddings."""
        measured_as = replace(scheme, embeddings=False)
        if measured_as not in self._worst:
            few = calibration[:_SENSITIVITY_TEXTS]
            given = self._graph, self._path, self._manifest
            self._worst[measured_as] = worst_first(*given, measured_as, self._head, few)
        return self._worst[measured_as]

    def _described(self, params: RungParams, quantized: Quantized) -> QuantizationScheme:
        storage = scheme_of(params).storage
        return QuantizationScheme.model_validate(
            {
                "activations": "uint8 per token, dynamic",
                "weights": storage.text,
                "reduce_range": storage.limit < FULL_LIMIT,
                "embeddings": "int8 per row, symmetric" if params.quantize_embeddings else "float32",
                "quantized_matmuls": quantized.num_matmuls,
                "quantized_embeddings": quantized.num_embeddings,
                "exact_matmuls": quantized.exact,
                "quantized_activations": quantized.num_activations,
                "static_activations": tuple(quantized.static),
                "smoothed_activations": tuple(name for name, reach in quantized.static.items() if reach.is_smoothed),
                "static_ratio": round(max((reach.ratio for reach in quantized.static.values()), default=0.0), 2),
            }
        )


def scheme_of(rung: RungParams) -> Scheme:
    """Return the scheme of one rung of the ladder."""
    return Scheme(weights=rung.weights, embeddings=rung.quantize_embeddings)


def describe(rung: Rung) -> str:
    """Describe a rung in one line for the log."""
    verdict = "passes" if rung.is_passed else "fails: " + "; ".join(str(c) for c in rung.checks if not c.is_passed)
    return (
        f"{rung.scheme.kind}: {rung.scheme}: {rung.size_bytes / 1e6:,.2f} MB,"
        f" answers {rung.agreement.value:.2%} of {rung.agreement.num_items:,} items as fp32 does,"
        f" reaches {rung.metric_ratio.value:.2%} of fp32's {rung.metric}; {verdict}"
    )
