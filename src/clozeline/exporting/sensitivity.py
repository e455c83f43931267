"""Sensitivity: the error that INT8 causes in each product with a weight matrix.

Shapes: A answers, V vocabulary or classes.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from clozeline.artifacts.export.manifest import FILES, Manifest
from clozeline.exporting.answers import as_asked, logits
from clozeline.exporting.graph import write_graph
from clozeline.exporting.quantization import Scheme, products_by_constants, quantize
from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import open_graph
from clozeline.inference.tokenization import TokenizedText

_LOG = logging.getLogger(__name__)


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
