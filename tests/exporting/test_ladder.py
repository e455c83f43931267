"""Each gate works; the ladder finds the product that outlier channels spoil, or serves fp32; fixed scales are kept if
nothing is lost.

Activations too uneven for a fixed scale are smoothed; those that a normalization smooths for free always are.
"""

import json
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto, helper, numpy_helper
from transformers import ModernBertForMaskedLM

from clozeline.exporting import exams, fixed_scales, ladder
from clozeline.exporting.exams import Sample, logits
from clozeline.exporting.graph import op_counts, read_graph, write_graph
from clozeline.exporting.ladder import Proof, lacking, worst_first
from clozeline.exporting.quantization import Scheme
from clozeline.inference.language import HIDDEN
from clozeline.inference.latency import measure
from clozeline.inference.package import load
from clozeline.params.delivery import RungParams
from clozeline.records.package import FILES, Manifest, QuantizationScheme, Rung, read_manifest, verify
from clozeline.system.errors import ArtifactError
from tests.exporting.conftest import GATES, OPEN, OUTLIER_CHANNELS, ExportModel, TinyPackage, sample_of
from tests.make.models import OPEN as NO_GATES
from tests.make.models import SENTENCES, Limits
from tests.make.packages import LABELS, write_classifier

LIMITS = NO_GATES.but(
    min_agreement=0.9,
    min_agreement_texts=5,
    min_metric_items=5,
    min_embedding_cosine=0.99,
    min_token_cosine=0.98,
    max_batch_flips=0.005,
    min_batch_cosine=0.999,
)


@pytest.fixture
def package(encoder_package: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(encoder_package, tmp_path / "package"))


def proof_of(package: Path, limits: Limits = LIMITS, sample: Sample | None = None) -> Proof:
    return Proof(package / FILES.fp32, read_manifest(package), sample or sample_of(SENTENCES), limits.gates)


def rung_of(package: Path, limits: Limits = LIMITS, sample: Sample | None = None, proof: Proof | None = None) -> Rung:
    scheme = read_manifest(package).quantization
    assert scheme is not None
    with limits.applied():
        return (proof or proof_of(package, limits, sample)).rung(package / FILES.int8, scheme)


def failed(rung: Rung) -> list[str]:
    return [check.name for check in rung.checks if not check.is_passed]


@pytest.mark.parametrize(
    ("figure", "limit", "value"),
    [
        ("agreement", "min_agreement", 1.01),
        ("agreement_texts", "min_agreement_texts", 6),
        ("different_answers", "min_different_answers", 1000),
        ("metric_ratio", "min_metric_ratio", 9.0),
        ("metric_items", "min_metric_items", 1000),
        ("embedding_cosine_mean", "min_embedding_cosine", 1.01),
        ("token_cosine_mean", "min_token_cosine", 1.01),
        ("batch_flips", "max_batch_flips", -0.1),
        ("batch_cosine_min", "min_batch_cosine", 1.01),
        (None, "min_agreement", 0.9),
    ],
)
def test_int8_fails_if_any_single_gate_fails_and_else_passes(
    package: Path, figure: str | None, limit: str, value: float
) -> None:
    assert failed(rung_of(package, LIMITS.but(**{limit: value}))) == ([figure] if figure else [])


def rename(graph: ModelProto, old: str, new: str) -> None:
    for node in graph.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def add(graph: ModelProto, *nodes: tuple[str, list[str], str], **constants: np.ndarray) -> None:
    graph.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    graph.graph.node.extend(helper.make_node(kind, given, [made]) for kind, given, made in nodes)


def along_one_axis(length: float) -> np.ndarray:
    return np.eye(1, 32, dtype=np.float32)[0] * np.float32(length)


def spoil_embeddings(graph: ModelProto) -> None:
    """Add the same vector to each embedding."""
    rename(graph, "sentence_embedding", "right")
    unit = ("ReduceL2", ["wrong", "axis"], "norm"), ("Div", ["wrong", "norm"], "sentence_embedding")
    add(graph, ("Add", ["right", "v"], "wrong"), *unit, v=along_one_axis(3), axis=np.array([-1]))


def spoil_token_vectors(graph: ModelProto) -> None:
    """Add the same vector to the vector of each token that is answered, and to nothing that is made of them."""
    rename(graph, HIDDEN, "right")
    add(graph, ("Add", ["right", "v"], HIDDEN), v=along_one_axis(30))


def name_the_least_likely(graph: ModelProto) -> None:
    node = next(node for node in graph.graph.node if node.name == "top_ids")
    node.attribute.append(helper.make_attribute("largest", 0))


def say_one_label(graph: ModelProto) -> None:
    """Make the graph give one label to every text."""
    rename(graph, "logits", "right")
    constants = {"nothing": np.array(0, np.float32), "always": np.array([0, 9, 0], np.float32)}
    add(graph, ("Mul", ["right", "nothing"], "gone"), ("Add", ["gone", "always"], "logits"), **constants)


def damage_int8(package: Path, damage: Callable[[ModelProto], None]) -> None:
    graph = read_graph(package / FILES.int8)
    damage(graph)
    write_graph(graph, package / FILES.int8)


@pytest.mark.parametrize(
    ("damage", "figure"),
    [
        (spoil_embeddings, "embedding_cosine_mean"),
        (spoil_token_vectors, "token_cosine_mean"),
        (name_the_least_likely, "agreement"),
    ],
)
def test_the_served_outputs_are_checked_and_not_only_the_logits(
    package: Path, damage: Callable[[ModelProto], None], figure: str
) -> None:
    """The logits of both graphs are right."""
    damage_int8(package, damage)
    assert failed(rung_of(package)) == [figure]


@pytest.mark.parametrize(
    ("agreement", "ratio", "limits"), [(0.95, 0.99, (0.95, 0.99)), (0.8, 0.5, (0.9, 0.97)), (0.95, 1.1, (0.95, 1.0))]
)
def test_an_earlier_rung_raises_the_limits_and_never_lowers_them(
    agreement: float, ratio: float, limits: tuple[float, float]
) -> None:
    before: Any = SimpleNamespace(agreement=SimpleNamespace(low=agreement), metric_ratio=SimpleNamespace(low=ratio))
    gates = ladder.no_worse_than(before, LIMITS.but(min_metric_ratio=0.97).gates)
    assert (gates.min_agreement, gates.min_metric_ratio) == limits


@pytest.mark.parametrize(
    ("text", "lacks"),
    [("small models answer", ["agreement_texts", "metric_items"]), (" ".join(SENTENCES), ["agreement_texts"])],
)
def test_one_text_is_too_few_to_pass_the_gates_however_long(package: Path, text: str, lacks: list[str]) -> None:
    rung = rung_of(package, sample=sample_of([text]))
    assert rung.agreement.value == 1
    assert (failed(rung), [check.name for check in lacking(rung)]) == (lacks, lacks)


def test_a_constant_answer_of_fp32_fails_the_distinct_answers_check(tiny_package: TinyPackage) -> None:
    """All texts are of one class, and INT8 gives that class to every text."""
    package = tiny_package(write_classifier)
    every = [f"{one} {other}" for one in "abcdefg" for other in "hijk"]
    named = [best.label for (best,) in load(package).classify(every)]
    of_one = [text for text, label in zip(every, named, strict=True) if label == LABELS[1]]
    damage_int8(package, say_one_label)
    gates = LIMITS.but(min_different_answers=2)
    alike, different = (rung_of(package, gates, sample_of(texts)) for texts in (of_one, every))
    assert (alike.agreement.value, alike.metric_ratio.value, alike.batch_cosine_min) == (1, 1, None)
    assert failed(alike) == [check.name for check in lacking(alike)] == ["different_answers"]
    assert failed(different) == ["agreement"]
    assert different.different_answers == len(set(named)) == 3


def test_labels_changed_by_other_texts_are_counted_relative_to_given_labels(
    topics_package: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run with others, one text loses its labels: a large share of the few given labels, not of all labels."""
    proof = proof_of(topics_package)
    given_A = np.array([1, 0, 0] * 5)
    rounds = iter([given_A, given_A, *[given_A * (np.arange(15) >= 3)] * 3])
    monkeypatch.setattr(exams, "answers", lambda *asked: next(rounds))
    scheme = read_manifest(package).quantization
    assert isinstance(scheme, QuantizationScheme)
    flips = proof.rung(topics_package / FILES.fp32, scheme).batch_flips
    assert (flips.value, flips.num_items) == (pytest.approx(1 / 5), 15)


def test_saturating_sums_are_detected_and_refused(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real saturation depends on the processor, so here another graph gives the wide sums."""
    proof, opened = proof_of(package), ladder.open_graph

    def other_if_wide(path: Path, given: Manifest, *, wide_sums: bool = False) -> object:
        return opened(package / FILES.fp32 if wide_sums else path, given)

    monkeypatch.setattr(ladder, "open_graph", other_if_wide)
    rung = rung_of(package, proof=proof)
    assert (rung.saturation > 0, failed(rung)) == (True, ["saturation"])


def no_number_in(place: int, values: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    for number, value in enumerate(values):
        yield value * np.nan if number == place else value


def test_nan_fails_the_checks_of_saturation_and_of_batches(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = proof_of(package)
    with monkeypatch.context() as patched:
        patched.setattr(exams, "logits", lambda *given: no_number_in(1, logits(*given)))
        rung = rung_of(package, proof=proof)
    again = Rung.model_validate_json(rung.model_dump_json())
    assert failed(rung) == failed(again) == ["saturation"]
    assert math.isnan(again.saturation)
    # The first compares with fp32, the others are one per grouping.
    given = iter(no_number_in(2, [np.ones(3, dtype=np.float32)] * 4))
    monkeypatch.setattr(ladder, "_cosines", lambda *answers: next(given))
    assert failed(rung_of(package, proof=proof)) == ["batch_cosine_min"]


LADDER = tuple(
    RungParams(weights="int7", exact_share=share, quantize_embeddings=True) for share in (0.0, 0.01, 0.1, 0.5)
)
SPOILED = "layers.1.mlp.output"


def metrics_beside(package: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((package.parent / "metrics.json").read_text(encoding="utf-8"))
    return metrics


@pytest.fixture(scope="module")
def climbed(outlier_encoder: Path, export_model: ExportModel) -> Path:
    return export_model(outlier_encoder, ladder=LADDER, limits=GATES, static_ratios=())


def test_the_plain_scheme_fails_and_keeping_the_spoiled_product_in_fp32_passes(climbed: Path) -> None:
    """Of four rungs two are tried: 1 % and 10 % of nine products are both one product."""
    manifest, metrics = read_manifest(climbed), metrics_beside(climbed)
    plain, mended = manifest.ladder
    assert (failed(plain), failed(mended)) == (["agreement"], [])
    (left_out,) = set(mended.scheme.exact_matmuls) - set(plain.scheme.exact_matmuls)
    assert left_out.endswith(SPOILED)
    assert mended.agreement.value > 0.9 > plain.agreement.high
    assert (manifest.served, manifest.quantization) == ("int8", mended.scheme)
    assert mended.size_bytes == (climbed / FILES.int8).stat().st_size
    for rung in manifest.ladder:
        assert (rung.metric, rung.saturation) == ("masked-LM accuracy", 0)
        for measured in (rung.agreement, rung.metric_ratio):
            assert measured.low <= measured.value <= measured.high
            assert measured.num_items > 100
        assert rung.batch_flips.num_items > rung.agreement.num_items
    assert [Rung.model_validate(rung) for rung in metrics["ladder"]] == [plain, mended]
    assert (metrics["served"], metrics["int8_agreement"]) == ("int8", mended.agreement.value)


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


def test_fp32_is_served_with_the_reason_if_no_scheme_passes(
    outlier_encoder: Path, export_model: ExportModel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        refused = export_model(outlier_encoder, ladder=LADDER[:1], limits=GATES)
    assert "no INT8 scheme of the ladder passed its gates: fp32 is served" in caplog.text
    manifest, metrics = read_manifest(refused), metrics_beside(refused)
    assert (manifest.served, manifest.quantization, manifest.precisions) == ("fp32", None, ("fp32",))
    assert not (refused / FILES.int8).exists()
    verify(refused, manifest)
    assert (metrics["served"], "int8_agreement" in metrics) == ("fp32", False)
    assert [rung["checks"][0]["is_passed"] for rung in metrics["ladder"]] == [False]
    text = ["the encoder reads a [MASK]"]
    assert load(refused).fill(text) == load(refused, precision="fp32").fill(text)
    with pytest.raises(ArtifactError, match="no INT8 scheme of its `ladder` passed"):
        load(refused, precision="int8")
    assert measure(refused, batch_texts=2, repeats=1).int8_speedup is None


def test_the_worst_product_is_found_by_quantizing_one_at_a_time(climbed: Path, tmp_path: Path) -> None:
    for name in (FILES.fp32, FILES.tokenizer):
        shutil.copyfile(climbed / name, tmp_path / name)
    manifest = read_manifest(climbed)
    head = manifest.ladder[0].scheme.exact_matmuls
    texts = ["raises an error if the file is empty", "a tokenizer cuts text into pieces"]
    scheme = Scheme(weights="int7", embeddings=True)
    worst = worst_first(read_graph(climbed / FILES.fp32), tmp_path / FILES.int8, manifest, scheme, head, texts)
    assert worst[0].endswith(SPOILED)
    assert (len(worst), set(worst) & set(head)) == (9, set())


def test_each_rung_orders_its_worst_products_by_its_own_weight_type(
    small_encoder: Path, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each type of weights has its own order of products, however the embeddings are stored."""
    orders: dict[str, list[str]] = {}

    def measured(graph: ModelProto, path: Path, manifest: Manifest, scheme: Scheme, *given: object) -> list[str]:
        assert scheme.weights not in orders
        names = [node.name for node in graph.graph.node if "layers.0." in node.name and node.op_type == "MatMul"]
        orders[scheme.weights] = names[: 2 * len(orders) + 1][::-1]
        return orders[scheme.weights]

    monkeypatch.setattr(ladder, "worst_first", measured)
    rungs = tuple(
        RungParams(weights=name, exact_share=0.1, quantize_embeddings=yes)
        for name, yes in [("int7", True), ("uint8", True), ("uint8", False)]
    )
    manifest = read_manifest(export_model(small_encoder, ladder=rungs, limits=GATES.but(min_agreement=1.01)))
    worst = [rung.scheme.exact_matmuls[-1] for rung in manifest.ladder]
    assert worst == [orders["int7"][0], orders["uint8"][0], orders["uint8"][0]]
    assert orders["int7"][0] != orders["uint8"][0]
    stored = [rung.scheme.embeddings.split()[0] for rung in manifest.ladder]
    assert stored == ["int8", "int8", "float32"], "a scheme has the options of its rung"


RATIOS = (8.0, 2.0)


@pytest.fixture(scope="module")
def at_run_time(outspoken_encoder: Path, export_model: ExportModel) -> Path:
    return export_model(outspoken_encoder, limits=OPEN, static_ratios=())


def test_fixed_scales_are_served_if_tokens_have_similar_ranges(
    outspoken_encoder: Path, export_openly: ExportModel, at_run_time: Path
) -> None:
    fixed, again = (export_openly(outspoken_encoder, static_ratios=RATIOS) for _ in range(2))
    assert (again / FILES.int8).read_bytes() == (fixed / FILES.int8).read_bytes()
    manifest, metrics = read_manifest(fixed), metrics_beside(fixed)
    dynamic, *_, static = manifest.ladder
    assert (dynamic.is_passed, dynamic.scheme.static_activations) == (True, ())
    assert manifest.quantization == static.scheme
    assert 0 < static.scheme.static_ratio <= max(RATIOS)
    num_static = len(static.scheme.static_activations)
    assert 0 < num_static <= static.scheme.quantized_activations == 9
    assert static.embedding_cosine_mean is not None
    assert static.embedding_cosine_mean > 0.98
    assert static.batch_flips.value == 0
    reductions = [op_counts(read_graph(package / FILES.int8))["ReduceMax"] for package in (at_run_time, fixed)]
    assert reductions[0] - reductions[1] == num_static
    assert (metrics["static_activations"], metrics["int8_agreement"]) == (num_static, static.agreement.value)


def test_fixed_scales_below_the_interval_of_run_time_scales_are_reported_and_not_served(
    outspoken_encoder: Path, at_run_time: Path, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranges are far too narrow here: most values of a token are clipped."""
    with monkeypatch.context() as narrowed:
        narrowed.setattr(fixed_scales, "_HEADROOM", 0.1)
        package = export_model(outspoken_encoder, limits=OPEN, static_ratios=RATIOS)
    manifest, metrics = read_manifest(package), metrics_beside(package)
    dynamic, *refused = manifest.ladder
    assert [rung.is_passed for rung in refused] == [False, False]
    limits, own = ({check.name: check.limit for check in rung.checks} for rung in (refused[0], dynamic))
    assert limits["agreement"] == dynamic.agreement.low > own["agreement"] == OPEN.gates.min_agreement
    assert limits["metric_ratio"] == min(dynamic.metric_ratio.low, 1)
    assert (manifest.served, manifest.quantization) == ("int8", dynamic.scheme)
    assert (package / FILES.int8).read_bytes() == (at_run_time / FILES.int8).read_bytes()
    verify(package, manifest)
    assert (metrics["static_activations"], metrics["int8_agreement"]) == (0, dynamic.agreement.value)


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


def fixed_scheme(package: Path) -> QuantizationScheme:
    """Return the served scheme; check that the INT8 graph reads every activation that it names."""
    scheme = read_manifest(package).quantization
    assert scheme is not None
    read = {name for node in read_graph(package / FILES.int8).graph.node for name in node.input}
    assert set(scheme.smoothed_activations) <= set(scheme.static_activations) <= read
    assert metrics_beside(package)["smoothed_activations"] == len(scheme.smoothed_activations)
    return scheme


def test_uneven_activations_are_smoothed_and_so_are_those_that_a_normalization_smooths_for_free(
    outlying_encoder: Path, export_openly: ExportModel
) -> None:
    eased = fixed_scheme(export_openly(outlying_encoder, static_ratios=(LIMIT,)))
    with pytest.MonkeyPatch.context() as never:
        never.setattr(fixed_scales, "smoothable", lambda *given: {})
        not_eased = fixed_scheme(export_openly(outlying_encoder, static_ratios=(LIMIT,)))
    uneven = [name for name in eased.smoothed_activations if "layers.1.mlp.output/" in name]
    assert uneven == ["model.encoder.layers.1.mlp.output/input/smoothed"]
    assert not any("layers.1.mlp.output/" in name for name in not_eased.static_activations)
    assert eased.static_ratio <= LIMIT
    free = "model.encoder.layers.1.mlp.input/input"
    assert free in not_eased.static_activations
    assert f"{free}/smoothed" in eased.smoothed_activations
    # Without outlier channels a product of gates stays; so does an input that a normalization could smooth.
    even = {f"model.encoder.layers.0.{name}" for name in ("mlp.output/input", "mlp.input/input")}
    assert even <= set(eased.static_activations) & set(not_eased.static_activations)
    assert not any(".layers.0." in name for name in eased.smoothed_activations)


@pytest.mark.parametrize(
    ("moved_AV", "cost"),
    [
        (np.array([[5.0], [-3.0], [0.0]]) * np.ones(4), 0),  # a common shift of all logits
        (np.array([[1.0, -1.0, 1.0, -1.0]] * 3) + 7, 1),
        (3 * np.array([[1.0, -1.0, 1.0, -1.0]] * 3), 9),
    ],
)
def test_a_logit_difference_costs_its_square_less_a_common_shift(
    moved_AV: np.ndarray, cost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact_AV = np.arange(12, dtype=np.float32).reshape(3, 4)
    monkeypatch.setattr(ladder, "logits", lambda *given: [exact_AV + moved_AV.astype(np.float32)])
    unused: Any = object()
    assert ladder._mean_square(unused, [], [exact_AV]) == pytest.approx(cost)
