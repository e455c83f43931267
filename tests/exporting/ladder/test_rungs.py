"""Outlier channels spoil a model's INT8 answers in one product: the ladder finds that product, or serves fp32."""

import json
import logging
from pathlib import Path

import pytest
from onnx import ModelProto

from clozeline.exporting import ladder
from clozeline.exporting.graph import read_graph
from clozeline.exporting.ladder import worst_first
from clozeline.exporting.quantization import Scheme
from clozeline.inference.latency import measure
from clozeline.inference.package import load
from clozeline.params.delivery import RungParams
from clozeline.params.reading import read_params
from clozeline.records.package import FILES, Manifest, Rung, read_manifest, verify
from clozeline.system.errors import ArtifactError
from tests.exporting.ladder.conftest import GATES, ExportModel

CHECKOUT = Path(__file__).parents[3]
LADDER = tuple(
    RungParams(weights="int7", exact_share=share, quantize_embeddings=True) for share in (0.0, 0.01, 0.1, 0.5)
)
SPOILED = "layers.1.mlp.output"


@pytest.fixture(scope="module")
def climbed(outlier_encoder: Path, export_model: ExportModel) -> Path:
    return export_model(outlier_encoder, ladder=LADDER, limits=GATES, static_ratios=())


def test_a_scheme_without_int8_products_is_logged_as_such(
    outlier_encoder: Path, export_model: ExportModel, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a scheme passes its gates by changing nothing, so the served graph must not look like INT8."""
    rung = RungParams(weights="int7", exact_share=1.0, quantize_embeddings=True)
    caplog.set_level(logging.INFO)
    manifest = read_manifest(export_model(outlier_encoder, ladder=(rung,), limits=GATES, static_ratios=()))
    assert (manifest.served, manifest.ladder[0].scheme.quantized_matmuls) == ("int8", 0)
    assert manifest.ladder[0].scheme.kind == "products in fp32, embeddings in INT8"
    assert "the served graph has no product in INT8: products in fp32, embeddings in INT8" in caplog.text
    assert "INT8 scheme: products in fp32, embeddings in INT8: " in caplog.text


def test_a_scheme_has_the_options_of_its_rung_in_params() -> None:
    rung = read_params(CHECKOUT / "params.yaml").export.ladder[-1]
    scheme = ladder.scheme_of(rung)
    assert (scheme.weights, scheme.embeddings) == (rung.weights, rung.quantize_embeddings)


@pytest.fixture(scope="module")
def refused(outlier_encoder: Path, export_model: ExportModel) -> Path:
    return export_model(outlier_encoder, ladder=LADDER[:1], limits=GATES)


def test_the_plain_scheme_fails_and_keeping_the_spoiled_product_in_fp32_passes(climbed: Path) -> None:
    manifest = read_manifest(climbed)
    plain, mended = manifest.ladder
    assert not plain.is_passed
    assert [check.name for check in plain.checks if not check.is_passed] == ["agreement"]
    assert mended.is_passed
    (left_out,) = set(mended.scheme.exact_matmuls) - set(plain.scheme.exact_matmuls)
    assert left_out.endswith(SPOILED)
    assert mended.agreement.value > 0.9 > plain.agreement.high
    assert (manifest.served, manifest.quantization) == ("int8", mended.scheme)
    assert mended.size_bytes == (climbed / FILES.int8).stat().st_size


def test_two_rungs_with_the_same_scheme_are_tried_once(climbed: Path) -> None:
    """1 % and 10 % of nine products are both one product."""
    assert len(read_manifest(climbed).ladder) == 2


def test_the_metrics_contain_the_whole_ladder(climbed: Path) -> None:
    metrics = json.loads((climbed.parent / "metrics.json").read_text(encoding="utf-8"))
    ladder = [Rung.model_validate(rung) for rung in metrics["ladder"]]
    assert ladder == list(read_manifest(climbed).ladder)
    assert metrics["served"] == "int8"
    assert metrics["int8_agreement"] == ladder[-1].agreement.value


def test_every_rung_states_items_and_interval(climbed: Path) -> None:
    for rung in read_manifest(climbed).ladder:
        assert rung.metric == "masked-LM accuracy"
        for measured in (rung.agreement, rung.metric_ratio):
            assert measured.low <= measured.value <= measured.high
            assert measured.num_items > 100
        assert rung.batch_flips.num_items > rung.agreement.num_items
        assert rung.saturation == 0


def test_fp32_is_served_and_reported_if_no_scheme_passes(
    refused: Path, outlier_encoder: Path, export_model: ExportModel, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = read_manifest(refused)
    assert (manifest.served, manifest.quantization, manifest.precisions) == ("fp32", None, ("fp32",))
    assert len(manifest.ladder) == 1
    assert not (refused / FILES.int8).exists()
    verify(refused, manifest)
    metrics = json.loads((refused.parent / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["served"] == "fp32"
    assert "int8_agreement" not in metrics
    assert metrics["ladder"][0]["checks"][0]["is_passed"] is False
    with caplog.at_level(logging.WARNING):
        export_model(outlier_encoder, ladder=(), limits=GATES)
    assert "no INT8 scheme of the ladder passed its gates: fp32 is served" in caplog.text


def test_a_package_without_int8_answers_in_fp32_and_refuses_int8_with_the_reason(refused: Path) -> None:
    text = ["the encoder reads a [MASK]"]
    assert load(refused).fill(text) == load(refused, precision="fp32").fill(text)
    with pytest.raises(ArtifactError, match="none of 1 INT8 schemes passed"):
        load(refused, precision="int8")
    latency = measure(refused, batch_texts=2, repeats=1)
    assert latency.int8_speedup is None
    assert "INT8" not in str(latency)


def test_the_worst_product_is_found_by_quantizing_one_at_a_time(climbed: Path, tmp_path: Path) -> None:
    (tmp_path / FILES.fp32).write_bytes((climbed / FILES.fp32).read_bytes())
    (tmp_path / FILES.tokenizer).write_bytes((climbed / FILES.tokenizer).read_bytes())
    manifest = read_manifest(climbed)
    scheme = Scheme(weights="int7", embeddings=True)
    head = manifest.ladder[0].scheme.exact_matmuls
    texts = ["raises an error if the file is empty", "a tokenizer cuts text into pieces"]
    graph = read_graph(climbed / FILES.fp32)
    worst = worst_first(graph, tmp_path / FILES.int8, manifest, scheme, head, texts)
    assert worst[0].endswith(SPOILED)
    assert len(worst) == 9
    assert not set(worst) & set(head)


def test_each_rung_orders_its_worst_products_by_its_own_weight_type(
    small_encoder: Path, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each type of weights has its own order of products, however the embeddings are stored."""
    rungs = [("int7", True), ("uint8", True), ("uint8", False)]
    orders: dict[str, list[str]] = {}

    def measured(graph: ModelProto, path: Path, manifest: Manifest, scheme: Scheme, *given: object) -> list[str]:
        assert scheme.weights not in orders
        names = [node.name for node in graph.graph.node if "layers.0." in node.name and node.op_type == "MatMul"]
        orders[scheme.weights] = names[: 2 * len(orders) + 1][::-1]
        return orders[scheme.weights]

    monkeypatch.setattr(ladder, "worst_first", measured)
    tried = tuple(RungParams(weights=name, exact_share=0.1, quantize_embeddings=yes) for name, yes in rungs)
    never = GATES.but(min_agreement=1.01)
    manifest = read_manifest(export_model(small_encoder, ladder=tried, limits=never))
    worst = [rung.scheme.exact_matmuls[-1] for rung in manifest.ladder]
    assert worst == [orders["int7"][0], orders["uint8"][0], orders["uint8"][0]]
    assert orders["int7"][0] != orders["uint8"][0]
