"""Activations too uneven for a fixed scale are smoothed; those that a normalization smooths for free always are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ModernBertForMaskedLM

from clozeline.exporting import ladder
from clozeline.exporting.graph import read_graph
from clozeline.records.package import FILES, QuantizationScheme, read_manifest
from tests.exporting.ladder.conftest import OUTLIER_CHANNELS, ExportModel

LIMIT = 4.0


@pytest.fixture(scope="module")
def outlying_encoder(outspoken_encoder: Path, save_trained: Callable[[Any], Path]) -> Path:
    """Channels 16 times as large before the last product of a layer, and 4 times as large before the one before it: not
    so large that a token's own scale leaves the others no digits.
    """
    model = ModernBertForMaskedLM.from_pretrained(outspoken_encoder)
    layer = model.model.layers[1]
    mlp = layer.mlp
    with torch.no_grad():
        gate = slice(mlp.Wi.out_features // 2, mlp.Wi.out_features // 2 + OUTLIER_CHANNELS)
        mlp.Wi.weight[gate] *= 16
        mlp.Wo.weight[:, :OUTLIER_CHANNELS] /= 16
        layer.mlp_norm.weight[:OUTLIER_CHANNELS] *= 4
        mlp.Wi.weight[:, :OUTLIER_CHANNELS] /= 4
    return save_trained(model)


@pytest.fixture(scope="module")
def eased(outlying_encoder: Path, export_openly: ExportModel) -> QuantizationScheme:
    return scheme_of(export_openly(outlying_encoder, static_ratios=(LIMIT,)))


@pytest.fixture(scope="module")
def not_eased(outlying_encoder: Path, export_openly: ExportModel) -> QuantizationScheme:
    with pytest.MonkeyPatch.context() as never:
        never.setattr(ladder, "smoothable", lambda *given: {})
        return scheme_of(export_openly(outlying_encoder, static_ratios=(LIMIT,)))


def scheme_of(package: Path) -> QuantizationScheme:
    """Return the served scheme; check that the INT8 graph reads every activation that it names."""
    scheme = read_manifest(package).quantization
    assert scheme is not None
    assert set(scheme.smoothed_activations) <= set(scheme.static_activations)
    read = {name for node in read_graph(package / FILES.int8).graph.node for name in node.input}
    assert set(scheme.static_activations) <= read
    metrics = json.loads((package.parent / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["smoothed_activations"] == len(scheme.smoothed_activations)
    return scheme


def test_an_activation_too_uneven_for_a_fixed_scale_is_smoothed(
    eased: QuantizationScheme, not_eased: QuantizationScheme
) -> None:
    (uneven,) = (name for name in eased.smoothed_activations if "layers.1.mlp.output/" in name)
    assert uneven == "model.encoder.layers.1.mlp.output/input/smoothed"
    assert not any("layers.1.mlp.output/" in name for name in not_eased.static_activations)
    assert eased.static_ratio <= LIMIT


def test_an_activation_is_always_smoothed_if_a_normalization_can_absorb_the_factors(
    eased: QuantizationScheme, not_eased: QuantizationScheme
) -> None:
    name = "model.encoder.layers.1.mlp.input/input"
    assert name in not_eased.static_activations
    assert f"{name}/smoothed" in eased.smoothed_activations


def test_an_input_without_outlier_channels_is_not_smoothed(
    eased: QuantizationScheme, not_eased: QuantizationScheme
) -> None:
    """A product of gates stays; so does an input that a normalization could smooth, but that has no outlier channel."""
    for name in ("mlp.output/input", "mlp.input/input"):
        assert f"model.encoder.layers.0.{name}" in not_eased.static_activations
        assert f"model.encoder.layers.0.{name}" in eased.static_activations
    assert not any(".layers.0." in name for name in eased.smoothed_activations)


def test_an_activation_that_smoothing_cannot_even_out_gets_no_fixed_scale(
    outlying_encoder: Path, export_openly: ExportModel
) -> None:
    package = export_openly(outlying_encoder, static_ratios=(0.01,))
    assert len(read_manifest(package).ladder) == 1
