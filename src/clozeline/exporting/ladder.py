"""INT8 schemes in the order that they are tried, until one shows what is asked of it; none: fp32 answers."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from clozeline.exporting.graph import remove_graph, write_graph
from clozeline.exporting.proof import Proof
from clozeline.exporting.quantization import Quantized, Scheme, products_by_constants, quantize
from clozeline.exporting.sensitivity import worst_first
from clozeline.inference.evidence import QuantizationScheme, Rung
from clozeline.inference.manifest import FILES, Manifest
from clozeline.params import ExportParams, RungParams

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Climbed:
    rungs: tuple[Rung, ...]
    """Each that was tried; the last one passed, if one did."""
    quantized: Quantized | None
    """What that one made of the graph; it is in the file. None: there is no such file."""


class Ladder:
    """The rungs of params, on one model."""

    def __init__(
        self, graph: ModelProto, folder: Path, manifest: Manifest, head: Sequence[str], params: ExportParams
    ) -> None:
        """Nothing is measured yet.

        Args:
            graph: fp32; it is in `folder` too, beside tokenizer.json.
            folder: where INT8 graphs are written.
            manifest: of the package, as far as it is known.
            head: MatMuls that stay in fp32 in any scheme.
            params: the section `export` of params.yaml.
        """
        self._graph, self._folder, self._manifest, self._params = graph, folder, manifest, params
        self._head = tuple(head)
        self._names = [name for name in products_by_constants(graph) if name not in head]
        self._worst: list[str] = []

    def climb(self, proof: Proof, calibration: Sequence[str]) -> Climbed:
        """Try each rung until one passes; its graph stays in the folder.

        Args:
            proof: what each is held to.
            calibration: texts that the worst products are found on, if a rung asks for them; not those of `proof`.
        """
        path = self._folder / FILES.int8
        rungs: list[Rung] = []
        for params in self._params.ladder:
            quantized = self._quantized(params, calibration)
            scheme = self._described(params, quantized)
            if scheme in [rung.scheme for rung in rungs]:
                continue  # Of a few products, two shares can be the same number.
            write_graph(quantized.model, path)
            rungs.append(proof.rung(path, scheme))
            _LOG.info("INT8 scheme %d: %s", len(rungs), told(rungs[-1]))
            if rungs[-1].is_passed:
                return Climbed(tuple(rungs), quantized)
        remove_graph(path)
        return Climbed(tuple(rungs), None)

    def _quantized(self, params: RungParams, calibration: Sequence[str]) -> Quantized:
        scheme = Scheme(
            per_token=self._params.per_token,
            per_channel=self._params.per_channel,
            weights=params.weights,
            embeddings=params.quantize_embeddings,
        )
        num_exact = math.ceil(params.exact_share * len(self._names))
        if num_exact and not self._worst:
            path = self._folder / FILES.int8
            self._worst = worst_first(self._graph, path, self._manifest, scheme, self._head, calibration)
        return quantize(self._graph, scheme, exact=(*self._head, *self._worst[:num_exact]))

    def _described(self, params: RungParams, quantized: Quantized) -> QuantizationScheme:
        signed, unsigned = ("int8 per {}, symmetric", "uint8 per {}, around 128")
        weights = unsigned if params.weights == "uint8" else signed
        return QuantizationScheme.model_validate(
            {
                "activations": f"uint8 per {'token' if self._params.per_token else 'batch'}, dynamic",
                "weights": weights.format("column" if self._params.per_channel else "matrix"),
                "reduce_range": params.weights == "int7",
                "embeddings": "int8 per row, symmetric" if params.quantize_embeddings else "float32",
                "quantized_matmuls": quantized.num_matmuls,
                "quantized_embeddings": quantized.num_embeddings,
                "exact_matmuls": quantized.exact,
            }
        )


def told(rung: Rung) -> str:
    """One line for a person."""
    verdict = "passes" if rung.is_passed else "fails: " + "; ".join(str(c) for c in rung.checks if not c.is_passed)
    return (
        f"{rung.scheme.weights}{' of 7 bits' if rung.scheme.reduce_range else ''}, embeddings {rung.scheme.embeddings},"
        f" {len(rung.scheme.exact_matmuls)} products in fp32: {rung.size_bytes / 1e6:,.2f} MB,"
        f" agrees in {rung.agreement.value:.2%} of {rung.agreement.num_items:,} answers,"
        f" {rung.metric_ratio.value:.2%} of fp32's {rung.metric}; {verdict}"
    )
