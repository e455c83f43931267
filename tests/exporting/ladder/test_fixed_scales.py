"""A model whose tokens have similar ranges is served with fixed scales, if they cost it no quality."""

import json
from pathlib import Path

import pytest

from clozeline.exporting import ranges
from clozeline.exporting.graph import op_counts, read_graph
from clozeline.records.package import FILES, read_manifest, verify
from tests.exporting.ladder.conftest import OPEN, ExportModel

RATIOS = (8.0, 2.0)


@pytest.fixture(scope="module")
def at_run_time(outspoken_encoder: Path, export_model: ExportModel) -> Path:
    return export_model(outspoken_encoder, limits=OPEN, static_ratios=())


@pytest.fixture(scope="module")
def fixed(outspoken_encoder: Path, export_openly: ExportModel) -> Path:
    return export_openly(outspoken_encoder, static_ratios=RATIOS)


def test_fixed_scales_are_served_if_tokens_have_similar_ranges(fixed: Path, at_run_time: Path) -> None:
    manifest = read_manifest(fixed)
    dynamic, *_, static = manifest.ladder
    assert dynamic.is_passed
    assert dynamic.scheme.static_activations == ()
    assert manifest.quantization == static.scheme
    assert 0 < static.scheme.static_ratio <= max(RATIOS)
    assert 0 < len(static.scheme.static_activations) <= static.scheme.quantized_activations == 9
    assert static.embedding_cosine_mean is not None
    assert static.embedding_cosine_mean > 0.98
    assert static.batch_flips.value == 0
    reductions = [op_counts(read_graph(package / FILES.int8))["ReduceMax"] for package in (at_run_time, fixed)]
    assert reductions[0] - reductions[1] == len(static.scheme.static_activations)
    metrics = json.loads((fixed.parent / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["static_activations"] == len(static.scheme.static_activations)
    assert metrics["int8_agreement"] == static.agreement.value


def test_fixed_scales_must_reach_the_interval_of_the_run_time_scales(
    outspoken_encoder: Path, export_model: ExportModel
) -> None:
    package = export_model(outspoken_encoder, limits=OPEN, static_ratios=RATIOS)
    dynamic, *_, static = read_manifest(package).ladder
    limits = {check.name: check.limit for check in static.checks}
    assert limits["agreement"] == dynamic.agreement.low > OPEN.gates.min_agreement
    assert limits["metric_ratio"] == min(dynamic.metric_ratio.low, 1)
    assert {check.name: check.limit for check in dynamic.checks}["agreement"] == OPEN.gates.min_agreement


def test_a_second_export_measures_the_same_ranges(
    fixed: Path, outspoken_encoder: Path, export_openly: ExportModel
) -> None:
    again = export_openly(outspoken_encoder, static_ratios=RATIOS)
    assert (again / FILES.int8).read_bytes() == (fixed / FILES.int8).read_bytes()


def test_fixed_scales_that_lose_accuracy_are_reported_and_not_served(
    outspoken_encoder: Path, at_run_time: Path, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranges are far too narrow here: most values of a token are clipped."""
    with monkeypatch.context() as narrowed:
        narrowed.setattr(ranges, "_HEADROOM", 0.1)
        package = export_model(outspoken_encoder, limits=OPEN, static_ratios=RATIOS)
    manifest = read_manifest(package)
    dynamic, *refused = manifest.ladder
    assert len(refused) == 2
    assert not any(rung.is_passed for rung in refused)
    assert (manifest.served, manifest.quantization) == ("int8", dynamic.scheme)
    assert (package / FILES.int8).read_bytes() == (at_run_time / FILES.int8).read_bytes()
    verify(package, manifest)
    metrics = json.loads((package.parent / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["int8_agreement"] == dynamic.agreement.value
    assert metrics["static_activations"] == 0


def test_fixed_scales_are_not_tried_if_token_ranges_differ(
    outspoken_encoder: Path, at_run_time: Path, export_model: ExportModel
) -> None:
    package = export_model(outspoken_encoder, limits=OPEN, static_ratios=(0.01,))
    assert len(read_manifest(package).ladder) == 1
    assert (package / FILES.int8).read_bytes() == (at_run_time / FILES.int8).read_bytes()
