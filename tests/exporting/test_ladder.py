"""A model with outlier channels loses its INT8 answers in one product: the ladder finds it, or lets fp32 answer. One
whose tokens are alike is served with fixed scales, if it loses nothing by them.
"""

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto
from transformers import ModernBertForMaskedLM

from clozeline.errors import ArtifactError
from clozeline.exporting import ladder, proof, ranges
from clozeline.exporting.answers import logits
from clozeline.exporting.graph import op_counts, read_graph, write_graph
from clozeline.exporting.proof import Proof
from clozeline.exporting.quantization import Scheme, quantize
from clozeline.exporting.sample import Sample
from clozeline.exporting.sensitivity import worst_first
from clozeline.inference.evidence import QuantizationScheme, Rung
from clozeline.inference.latency import measure
from clozeline.inference.manifest import FILES, Manifest, read_manifest, verify
from clozeline.inference.package import load
from clozeline.params import ExportGates, RungParams, read_params

CHECKOUT = Path(__file__).parents[2]
ExportModel = Callable[..., Path]
GATES = ExportGates(
    min_agreement=0.9,
    min_agreement_texts=3,
    min_metric_ratio=0,
    min_metric_items=1,
    min_embedding_cosine=0.9,
    max_batch_flips=0.005,
    min_batch_cosine=0.999,
)
LADDER = tuple(
    RungParams(weights="int7", exact_share=share, quantize_embeddings=True) for share in (0.0, 0.01, 0.1, 0.5)
)
OUTLIER_CHANNELS, OUTLIER_SIZE = 6, 1024.0
SPOILED = "layers.1/mlp/Wo/MatMul"


@pytest.fixture(scope="module")
def outlier_encoder(small_encoder: Path, save_trained: Callable[[Any], Path]) -> Path:
    """Channels before the last product of a layer are 1,024 times as large, and its weights for them as much smaller:
    fp32 answers the same to the bit, but a token's scale leaves the other channels no digits.
    """
    model = ModernBertForMaskedLM.from_pretrained(small_encoder)
    mlp = model.model.layers[1].mlp
    with torch.no_grad():
        # As drawn, the layers add so little that each mask is answered with the token of [MASK] itself.
        for weight in (*model.model.layers.parameters(), model.head.dense.weight):
            weight *= 8 if weight.ndim == 2 else 1
        gate = slice(mlp.Wi.out_features // 2, mlp.Wi.out_features // 2 + OUTLIER_CHANNELS)
        mlp.Wi.weight[gate] *= OUTLIER_SIZE
        mlp.Wo.weight[:, :OUTLIER_CHANNELS] /= OUTLIER_SIZE
    return save_trained(model)


@pytest.fixture(scope="module")
def climbed(outlier_encoder: Path, export_model: ExportModel) -> Path:
    return export_model(outlier_encoder, ladder=LADDER, gates=GATES, static_ratios=())


def test_with_every_product_exact_it_is_said_that_none_is_int8(
    outlier_encoder: Path, export_model: ExportModel, caplog: pytest.LogCaptureFixture
) -> None:
    """Its gates are passed by doing nothing: what is served is not to look like INT8."""
    rung = RungParams(weights="int7", exact_share=1.0, quantize_embeddings=True)
    caplog.set_level(logging.INFO)
    manifest = read_manifest(export_model(outlier_encoder, ladder=(rung,), gates=GATES, static_ratios=()))
    assert (manifest.served, manifest.ladder[0].scheme.quantized_matmuls) == ("int8", 0)
    assert manifest.ladder[0].scheme.kind == "products in fp32, embeddings in INT8"
    assert "what is served has no product in INT8: products in fp32, embeddings in INT8" in caplog.text
    assert "INT8 scheme: products in fp32, embeddings in INT8: " in caplog.text


def test_the_plan_of_a_server_and_the_ladder_take_one_scheme_from_params() -> None:
    export = read_params(CHECKOUT / "params.yaml").export
    rung = export.ladder[-1]
    scheme = ladder.scheme_of(export, rung)
    assert (scheme.per_token, scheme.per_channel) == (export.per_token, export.per_channel)
    assert (scheme.weights, scheme.embeddings) == (rung.weights, rung.quantize_embeddings)


@pytest.fixture(scope="module")
def refused(outlier_encoder: Path, export_model: ExportModel) -> Path:
    return export_model(outlier_encoder, ladder=LADDER[:1], gates=GATES)


def test_the_plain_scheme_fails_and_leaving_the_spoiled_product_out_passes(climbed: Path) -> None:
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


def test_a_rung_that_comes_to_the_same_is_not_tried_twice(climbed: Path) -> None:
    """1 % and 10 % of nine products are one each."""
    assert len(read_manifest(climbed).ladder) == 2


def test_the_whole_ladder_is_in_the_metrics_too(climbed: Path) -> None:
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


def test_where_nothing_passes_fp32_is_served_and_it_is_said(
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
        export_model(outlier_encoder, ladder=(), gates=GATES)
    assert "no INT8 scheme of `export.ladder` passed `export.gates`: fp32 is served" in caplog.text


def test_a_package_without_int8_answers_in_fp32_and_refuses_int8_with_the_reason(refused: Path) -> None:
    text = ["the encoder reads a [MASK]"]
    assert load(refused).fill(text) == load(refused, precision="fp32").fill(text)
    with pytest.raises(ArtifactError, match="1 INT8 schemes were tried, and none passed"):
        load(refused, precision="int8")
    latency = measure(refused, batch_texts=2, repeats=1)
    assert latency.int8_speedup is None
    assert "INT8" not in str(latency)


RATIOS = (8.0, 2.0)
LIMIT = 4.0
OPEN = GATES.model_copy(update={"min_agreement": 0.5})


@pytest.fixture(scope="module")
def outspoken_encoder(outlier_encoder: Path, save_trained: Callable[[Any], Path]) -> Path:
    """Without the outlier channels: its tokens are alike in every layer."""
    model = ModernBertForMaskedLM.from_pretrained(outlier_encoder)
    mlp = model.model.layers[1].mlp
    with torch.no_grad():
        gate = slice(mlp.Wi.out_features // 2, mlp.Wi.out_features // 2 + OUTLIER_CHANNELS)
        mlp.Wi.weight[gate] /= OUTLIER_SIZE
        mlp.Wo.weight[:, :OUTLIER_CHANNELS] *= OUTLIER_SIZE
    return save_trained(model)


@pytest.fixture(scope="module")
def at_run_time(outspoken_encoder: Path, export_model: ExportModel) -> Path:
    return export_model(outspoken_encoder, gates=OPEN, static_ratios=())


@pytest.fixture(scope="module")
def fixed(outspoken_encoder: Path, export_model: ExportModel) -> Path:
    return export_model(outspoken_encoder, gates=OPEN, static_ratios=RATIOS)


def test_where_tokens_are_alike_the_scheme_that_passed_is_served_with_fixed_scales(
    fixed: Path, at_run_time: Path
) -> None:
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


def test_fixed_scales_may_not_show_less_than_the_intervals_of_those_at_run_time(fixed: Path) -> None:
    dynamic, *_, static = read_manifest(fixed).ladder
    limits = {check.name: check.limit for check in static.checks}
    assert limits["agreement"] == dynamic.agreement.low > OPEN.min_agreement
    assert limits["metric_ratio"] == min(dynamic.metric_ratio.low, 1)
    assert {check.name: check.limit for check in dynamic.checks}["agreement"] == OPEN.min_agreement


def test_a_second_export_measures_the_same_ranges(
    fixed: Path, outspoken_encoder: Path, export_model: ExportModel
) -> None:
    again = export_model(outspoken_encoder, gates=OPEN, static_ratios=RATIOS)
    assert (again / FILES.int8).read_bytes() == (fixed / FILES.int8).read_bytes()


def test_fixed_scales_that_lose_something_are_shown_and_not_served(
    outspoken_encoder: Path, at_run_time: Path, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges are far too narrow here: most of what a token has is cut off."""
    with monkeypatch.context() as narrowed:
        narrowed.setattr(ranges, "_HEADROOM", 0.1)
        package = export_model(outspoken_encoder, gates=OPEN, static_ratios=RATIOS)
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
def eased(outlying_encoder: Path, export_model: ExportModel) -> QuantizationScheme:
    return scheme_of(export_model(outlying_encoder, gates=OPEN, static_ratios=(LIMIT,)))


@pytest.fixture(scope="module")
def not_eased(outlying_encoder: Path, export_model: ExportModel) -> QuantizationScheme:
    with pytest.MonkeyPatch.context() as never:
        never.setattr(ladder, "smoothable", lambda *given: {})
        return scheme_of(export_model(outlying_encoder, gates=OPEN, static_ratios=(LIMIT,)))


def scheme_of(package: Path) -> QuantizationScheme:
    """What is served; of each activation that it names, there is one in the graph."""
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
    (uneven,) = (name for name in eased.smoothed_activations if "layers.1/mlp/Mul" in name)
    assert uneven == "/masked_lm/model/layers.1/mlp/Mul_2_output_0/smoothed"
    assert not any("layers.1/mlp/Mul" in name for name in not_eased.static_activations)
    assert eased.static_ratio <= LIMIT


def test_one_that_a_normalization_smooths_at_no_cost_is_smoothed_though_it_need_not_be(
    eased: QuantizationScheme, not_eased: QuantizationScheme
) -> None:
    name = "/masked_lm/model/layers.1/mlp_norm/LayerNormalization_output_0"
    assert name in not_eased.static_activations
    assert f"{name}/smoothed" in eased.smoothed_activations


def test_one_that_is_even_enough_stays_as_it_is(eased: QuantizationScheme, not_eased: QuantizationScheme) -> None:
    """A product of gates; and what a normalization could smooth at no cost, and has no channel to."""
    for name in ("mlp/Mul_2_output_0", "mlp_norm/LayerNormalization_output_0"):
        assert f"/masked_lm/model/layers.0/{name}" in not_eased.static_activations
        assert f"/masked_lm/model/layers.0/{name}" in eased.static_activations
    assert not any("/layers.0/" in name for name in eased.smoothed_activations)


def test_one_that_stays_too_uneven_though_smoothed_has_no_fixed_scale(
    outlying_encoder: Path, export_model: ExportModel
) -> None:
    package = export_model(outlying_encoder, gates=OPEN, static_ratios=(0.01,))
    assert len(read_manifest(package).ladder) == 1


def test_where_no_token_is_like_another_nothing_else_is_tried(
    outspoken_encoder: Path, at_run_time: Path, export_model: ExportModel
) -> None:
    package = export_model(outspoken_encoder, gates=OPEN, static_ratios=(0.01,))
    assert len(read_manifest(package).ladder) == 1
    assert (package / FILES.int8).read_bytes() == (at_run_time / FILES.int8).read_bytes()


def test_the_worst_product_is_found_by_what_it_alone_does_to_the_logits(climbed: Path, tmp_path: Path) -> None:
    (tmp_path / FILES.fp32).write_bytes((climbed / FILES.fp32).read_bytes())
    (tmp_path / FILES.tokenizer).write_bytes((climbed / FILES.tokenizer).read_bytes())
    manifest = read_manifest(climbed)
    scheme = Scheme(per_token=True, per_channel=True, weights="int7", embeddings=True)
    head = manifest.ladder[0].scheme.exact_matmuls
    texts = ["raises an error if the file is empty", "a tokenizer cuts text into pieces"]
    graph = read_graph(climbed / FILES.fp32)
    worst = worst_first(graph, tmp_path / FILES.int8, manifest, scheme, head, texts)
    assert worst[0].endswith(SPOILED)
    assert len(worst) == 9
    assert not set(worst) & set(head)


def test_the_worst_products_are_those_of_the_weights_that_a_rung_has(
    small_encoder: Path, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of weights has its own order, whatever becomes of the embeddings."""
    rungs = [("int7", True), ("uint8", True), ("uint8", False)]
    orders: dict[str, list[str]] = {}

    def measured(graph: ModelProto, path: Path, manifest: Manifest, scheme: Scheme, *given: object) -> list[str]:
        assert scheme.weights not in orders
        names = [node.name for node in graph.graph.node if "layers.0/" in node.name and "/MatMul" in node.name]
        orders[scheme.weights] = names[: 2 * len(orders) + 1][::-1]
        return orders[scheme.weights]

    monkeypatch.setattr(ladder, "worst_first", measured)
    tried = tuple(RungParams(weights=name, exact_share=0.1, quantize_embeddings=yes) for name, yes in rungs)
    never = GATES.model_copy(update={"min_agreement": 1.01})
    manifest = read_manifest(export_model(small_encoder, ladder=tried, gates=never))
    worst = [rung.scheme.exact_matmuls[-1] for rung in manifest.ladder]
    assert worst == [orders["int7"][0], orders["uint8"][0], orders["uint8"][0]]
    assert orders["int7"][0] != orders["uint8"][0]


SAMPLE = Sample(
    ["the encoder reads a sentence and fills in the word", "small models", "returns a tensor " * 9], [None] * 3
)


def rung_of(package: Path, folder: Path, per_token: bool) -> Rung:
    """Of the package's fp32 graph in INT8 with these scales of activations."""
    (folder / FILES.tokenizer).write_bytes((package / FILES.tokenizer).read_bytes())
    manifest = read_manifest(package)
    assert manifest.quantization is not None
    scheme = Scheme(per_token=per_token, per_channel=True, weights="int7", embeddings=True)
    write_graph(quantize(read_graph(package / FILES.fp32), scheme).model, folder / FILES.int8)
    return proof_of(package, manifest).rung(folder / FILES.int8, manifest.quantization)


def proof_of(package: Path, manifest: Manifest, sample: Sample = SAMPLE) -> Proof:
    return Proof(package / FILES.fp32, manifest, sample, GATES)


def test_neighbours_show_where_a_batch_has_one_scale_and_not_where_each_token_has_its_own(
    climbed: Path, tmp_path: Path
) -> None:
    by_token, by_batch = (rung_of(climbed, tmp_path, per_token=each) for each in (True, False))
    assert by_token.batch_cosine_min is not None
    assert by_batch.batch_cosine_min is not None
    assert by_token.batch_cosine_min > 0.999999 > by_batch.batch_cosine_min
    assert by_token.batch_flips.value == 0


def test_sums_that_saturate_are_seen_and_refused(
    climbed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whether they do depends on the processor, so that here the wide sums are another graph's."""
    manifest = read_manifest(climbed)
    held = proof_of(climbed, manifest)
    opened = proof.open_graph

    def other_if_wide(path: Path, given: Manifest, *, wide_sums: bool = False) -> object:
        return opened(climbed / FILES.fp32 if wide_sums else path, given)

    monkeypatch.setattr(proof, "open_graph", other_if_wide)
    assert manifest.quantization is not None
    rung = held.rung(climbed / FILES.int8, manifest.quantization)
    assert rung.saturation > 0
    assert [check.name for check in rung.checks if not check.is_passed] == ["saturation"]


def no_number_in(place: int, values: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    for number, value in enumerate(values):
        yield value * np.nan if number == place else value


def test_a_text_without_a_number_is_no_text_without_saturation(
    climbed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manifest = read_manifest(climbed)
    held = proof_of(climbed, manifest)
    monkeypatch.setattr(proof, "logits", lambda *given: no_number_in(1, logits(*given)))
    assert manifest.quantization is not None
    rung = held.rung(climbed / FILES.int8, manifest.quantization)
    assert [check.name for check in rung.checks if not check.is_passed] == ["saturation"]
    again = Rung.model_validate_json(rung.model_dump_json())
    assert math.isnan(again.saturation)
    assert not again.is_passed


def test_a_grouping_that_gives_no_number_is_no_grouping_without_a_difference(
    climbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest(climbed)
    held = proof_of(climbed, manifest)
    # The first is with fp32; then there is one for each grouping.
    given = iter(no_number_in(2, [np.ones(3, dtype=np.float32)] * 4))
    monkeypatch.setattr(proof, "_cosines", lambda *answers: next(given))
    assert manifest.quantization is not None
    rung = held.rung(climbed / FILES.int8, manifest.quantization)
    assert [check.name for check in rung.checks if not check.is_passed] == ["batch_cosine_min"]


def test_a_batch_without_a_number_in_half_is_no_small_one(climbed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = proof_of(climbed, read_manifest(climbed))
    ran = [(None, [np.array(value)]) for value in (1.0, math.nan, 2.0)]
    monkeypatch.setattr(proof, "open_graph", lambda *given: SimpleNamespace(run_batches=lambda *asked: ran))
    assert math.isnan(held.largest(climbed / FILES.fp32))


LABELS = ("jax", "numpy", "torch")


@pytest.mark.parametrize(
    ("labels", "metric", "num_items"),
    [(["jax", "torch", None], "accuracy", 2), (["jax", "cobol", None], "label agreement", 3)],
)
def test_a_classifier_is_held_to_labels_if_half_of_the_texts_have_one_it_knows(
    classifier_package: Path, labels: list[str | None], metric: str, num_items: int
) -> None:
    manifest = read_manifest(classifier_package)
    scheme = manifest.quantization
    assert isinstance(scheme, QuantizationScheme)
    rung = proof_of(classifier_package, manifest, Sample(SAMPLE.texts, labels)).rung(
        classifier_package / FILES.int8, scheme
    )
    assert rung.metric == metric
    assert rung.metric_ratio.num_items == num_items
    assert rung.batch_cosine_min is None
    named = [best.label for (best,) in load(classifier_package, precision="fp32").classify(SAMPLE.texts, truncate=True)]
    right = [name == label for name, label in zip(named, labels, strict=True) if label in LABELS]
    expected = sum(right) / len(right) if metric == "accuracy" else 1.0
    assert rung.fp32_metric == pytest.approx(expected)
