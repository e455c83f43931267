"""Content of the graphs, and the effect of params.yaml on it."""

from pathlib import Path

import onnx

from clozeline.exporting.attention import ATTENTION
from clozeline.exporting.graph import op_counts
from clozeline.exporting.quantization import PRODUCT
from clozeline.params.delivery import ExportParams, RungParams
from clozeline.records.package import FILES, read_manifest
from tests.make.models import OPEN
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
    knobs = {"opset": 18, "ladder": (rung,), "static_ratios": ()}
    package = export_model(small_encoder, limits=OPEN, **knobs)
    manifest = read_manifest(package)
    assert manifest.quantization is not None
    assert manifest.quantization.embeddings == "float32"
    assert manifest.quantization.weights == "int8 per column, symmetric"
    assert manifest.quantization.activations == "uint8 per token, dynamic"
    graph = onnx.load(package / FILES.int8)
    assert {opset.domain: opset.version for opset in graph.opset_import}[""] == manifest.opset == 18
    assert op_counts(graph)["Softmax"] > op_counts(graph)[ATTENTION] == 0
