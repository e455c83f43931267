"""Content of the graphs, and the effect of params.yaml on it."""

import json
from pathlib import Path

import onnx
import pytest

from clozeline.artifacts.export.manifest import CARD, FILES, HALF_GRAPH, SBOM, read_manifest, verify
from clozeline.exporting.attention import ATTENTION
from clozeline.exporting.graph import op_counts
from clozeline.exporting.quantization import PRODUCT
from clozeline.params import ExportParams, RungParams
from tests.open_gates import OPEN_GATES
from tests.stages.export.conftest import ExportModel, metrics_of


def test_every_weight_product_is_in_8_bits_and_no_other(encoder_package: Path) -> None:
    """ModernBERT, 2 layers: Wqkv, Wo, Wi, Wo of each, and the vocabulary; the dense layer of the head stays."""
    counts = op_counts(onnx.load(encoder_package / FILES.int8))
    assert counts["DynamicQuantizeLinear"] == 0
    assert counts[PRODUCT] == metrics_of(encoder_package)["quantized_matmuls"] == 2 * 4 + 1
    assert counts["MatMul"] == metrics_of(encoder_package)["float_matmuls"]
    assert metrics_of(encoder_package)["quantized_embeddings"] == 1


def test_attention_is_one_operator_of_the_opset_that_params_name(encoder_package: Path, params: ExportParams) -> None:
    assert read_manifest(encoder_package).opset == params.opset
    for name in (FILES.fp32, FILES.int8):
        graph = onnx.load(encoder_package / name)
        assert {opset.domain: opset.version for opset in graph.opset_import}[""] == params.opset
        assert op_counts(graph)[ATTENTION] == 2


def test_knobs_reach_the_graph(small_encoder: Path, export_model: ExportModel) -> None:
    rung = RungParams(weights="int7", exact_share=0.0, quantize_embeddings=False)
    knobs = {"opset": 18, "ladder": (rung,), "per_channel": False, "per_token": False, "static_ratios": ()}
    package = export_model(small_encoder, gates=OPEN_GATES, **knobs)
    manifest = read_manifest(package)
    assert manifest.quantization is not None
    assert manifest.quantization.embeddings == "float32"
    assert manifest.quantization.weights == "int8 per matrix, symmetric"
    assert manifest.quantization.activations == "uint8 per batch, dynamic"
    graph = onnx.load(package / FILES.int8)
    assert {opset.version for opset in graph.opset_import} == {manifest.opset} == {18}
    assert op_counts(graph)["Softmax"] > op_counts(graph)[ATTENTION] == 0
    assert op_counts(graph)["DynamicQuantizeLinear"] > 0


@pytest.fixture(scope="module")
def half_package(small_encoder: Path, export_model: ExportModel) -> Path:
    return export_model(small_encoder, half=True)


def test_an_fp16_graph_is_packaged_with_its_measured_figures(half_package: Path, encoder_package: Path) -> None:
    manifest, metrics = read_manifest(half_package), metrics_of(half_package)
    assert {file.name for file in half_package.iterdir()} == {*FILES, CARD, HALF_GRAPH, SBOM}
    verify(half_package, manifest)
    assert manifest.half is not None
    assert manifest.half.is_passed
    assert metrics["half"] == json.loads(manifest.half.model_dump_json())
    assert metrics["half"]["size_bytes"] == (half_package / HALF_GRAPH).stat().st_size
    assert metrics["half"]["agreement"]["value"] > 0.95
    assert 0 < metrics["half"]["largest_value"] < 65_504
    for name in (FILES.fp32, FILES.int8):
        assert (half_package / name).read_bytes() == (encoder_package / name).read_bytes()
    assert read_manifest(encoder_package).half is None


def test_a_second_fp16_export_has_the_same_bytes(
    half_package: Path, small_encoder: Path, export_model: ExportModel
) -> None:
    again = export_model(small_encoder, half=True)
    assert (again / HALF_GRAPH).read_bytes() == (half_package / HALF_GRAPH).read_bytes()


def test_a_failing_fp16_graph_is_left_out_and_reported(
    small_encoder: Path, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("clozeline.exporting.proof.LARGEST_HALF", 1e-3)
    package = export_model(small_encoder, half=True)
    manifest = read_manifest(package)
    assert {file.name for file in package.iterdir()} == {*FILES, CARD, SBOM}
    assert manifest.half is not None
    assert [check.name for check in manifest.half.checks if not check.is_passed] == ["largest_value"]
    assert manifest.served == "int8"
    assert "the float16 graph fails a check and is left out: largest_value" in caplog.text
