"""The ladder finds the product that outlier channels spoil, or serves fp32; fixed scales are kept if nothing is lost.

Activations too uneven for a fixed scale are smoothed; those that a normalization smooths for free always are.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto
from transformers import ModernBertForMaskedLM

from clozeline.exporting import fixed_scales, ladder
from clozeline.exporting.graph import op_counts, read_graph
from clozeline.exporting.ladder import worst_first
from clozeline.exporting.quantization import Scheme
from clozeline.inference.latency import measure
from clozeline.inference.package import load
from clozeline.params.delivery import RungParams
from clozeline.params.reading import read_params
from clozeline.records.package import FILES, Manifest, QuantizationScheme, Rung, read_manifest, verify
from clozeline.system.errors import ArtifactError
from tests.exporting.conftest import GATES, OPEN, OUTLIER_CHANNELS, ExportModel

CHECKOUT = Path(__file__).parents[2]
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
        narrowed.setattr(fixed_scales, "_HEADROOM", 0.1)
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
        never.setattr(fixed_scales, "smoothable", lambda *given: {})
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


def cost_of(moved_AV: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> float:
    exact_AV = np.arange(12, dtype=np.float32).reshape(3, 4)
    monkeypatch.setattr(ladder, "logits", lambda *given: [exact_AV + moved_AV.astype(np.float32)])
    return ladder._mean_square(object(), [], [exact_AV])


def test_a_common_shift_of_all_logits_has_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cost_of(np.array([[5.0], [-3.0], [0.0]]) * np.ones(4), monkeypatch) == 0


def test_the_cost_of_a_logit_difference_is_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = np.array([[1.0, -1.0, 1.0, -1.0]] * 3)
    assert cost_of(apart + 7, monkeypatch) == pytest.approx(1)
    assert cost_of(3 * apart, monkeypatch) == pytest.approx(9)
