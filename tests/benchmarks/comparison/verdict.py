"""Tells which of our graphs is timed, and whether the gates of params.yaml allow it to be served."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clozeline.exporting.proof import checks
from clozeline.params.delivery import ExportGates, ExportParams
from clozeline.records.package import Manifest, Precision, QuantizationScheme, Rung, read_manifest
from comparison.stages import params_tree

_LOG = logging.getLogger(__name__)


def verdict(package: Path) -> dict[str, Any]:
    """Return the JSON fields of our side: the served graph, its scheme, and every check with its limit.

    The limits are those of params.yaml, whatever `package` was exported with. Log a warning if the graph is an INT8
    graph that `make run` would not serve, or if it is fp32 because no INT8 scheme passed.
    """
    manifest = read_manifest(package)
    rung = judged(manifest)
    told = checks(rung, gates_of_params())
    passes = all(check.is_passed for check in told)
    failed = [str(check) for check in told if not check.is_passed]
    _tell(package, manifest.served, failed)
    return {
        "ours_precision": manifest.served,
        "ours_scheme": _short(rung.scheme) if manifest.served == "int8" else None,
        "ours_int8_passes": passes,
        "ours_int8_checks": [str(check) for check in told],
    }


def judged(manifest: Manifest) -> Rung:
    """Return the rung of the scheme that is served; if none is, the last rung that was tried."""
    served = [rung for rung in manifest.ladder if rung.scheme == manifest.quantization]
    return (served or manifest.ladder)[-1]


def gates_of_params() -> ExportGates:
    """Return the project's export gates, unchanged."""
    return ExportParams.model_validate(params_tree({})["export"]).gates


def _tell(package: Path, served: Precision, failed: Sequence[str]) -> None:
    if not failed:
        return
    what = "INT8 IS TIMED THAT WOULD NOT BE SERVED" if served == "int8" else "FP32 IS TIMED, NO INT8 SCHEME PASSED"
    _LOG.warning("%s: %s: %s", package, what, "; ".join(failed))


def _short(scheme: QuantizationScheme) -> dict[str, Any]:
    """Return the scheme with numbers of nodes instead of their names."""
    return {
        "weights": scheme.weights,
        "reduce_range": scheme.reduce_range,
        "embeddings": scheme.embeddings,
        "activations": scheme.activations,
        "quantized_matmuls": scheme.quantized_matmuls,
        "exact_matmuls": len(scheme.exact_matmuls),
        "quantized_activations": scheme.quantized_activations,
        "static_activations": len(scheme.static_activations),
        "smoothed_activations": len(scheme.smoothed_activations),
    }
