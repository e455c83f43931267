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
from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto, helper, numpy_helper
from transformers import ModernBertForMaskedLM

from clozeline.exporting import exams, fixed_scales, ladder
from clozeline.exporting.exams import Sample, logits
from clozeline.exporting.graph import op_counts, read_graph, write_graph
from clozeline.exporting.ladder import Proof, lacking
from clozeline.inference.language import HIDDEN
from clozeline.inference.latency import measure
from clozeline.inference.package import load
from clozeline.params.delivery import RungParams
from clozeline.records.package import FILES, Manifest, Measured, Rung, read_manifest, verify
from clozeline.records.record import Limit
from clozeline.system.errors import ArtifactError
from tests.exporting.conftest import TinyPackage, sample_of
from tests.make import packages
from tests.make.models import OPEN as NO_GATES
from tests.make.models import SENTENCES, ExportModel, Limits

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


def rung_of(package: Path, limits: Limits = LIMITS, sample: Sample | None = None) -> Rung:
    manifest = read_manifest(package)
    assert manifest.quantization is not None
    with limits.applied() as gates:
        proof = Proof(package / FILES.fp32, manifest, sample or sample_of(SENTENCES), gates)
        return proof.rung(package / FILES.int8, manifest.quantization)


def failed(checks: Iterable[Limit]) -> list[str]:
    return [check.name for check in checks if not check.is_passed]


@pytest.mark.parametrize(
    ("figure", "limit", "value"),
    [
        ("agreement", "min_agreement", 0.95),
        ("agreement_texts", "min_agreement_texts", 120),
        ("different_answers", "min_different_answers", 3),
        ("metric_ratio", "min_metric_ratio", 0.98),
        ("metric_items", "min_metric_items", 400),
        ("embedding_cosine_mean", "min_embedding_cosine", 0.995),
        ("token_cosine_mean", "min_token_cosine", 0.99),
        ("batch_flips", "max_batch_flips", 0.004),
        ("batch_cosine_min", "min_batch_cosine", 0.9995),
    ],
)
def test_int8_fails_if_any_single_gate_fails_and_else_passes(figure: str, limit: str, value: float) -> None:
    agreement, ratio, flips = (
        Measured(value=middle, low=middle / 2, high=2 * middle, num_items=num_items, num_texts=120)
        for middle, num_items in ((0.95, 300), (0.98, 400), (0.004, 300))
    )
    cosines = {"embedding_cosine_mean": 0.995, "token_cosine_mean": 0.99, "batch_cosine_min": 0.9995}
    rung = packages.rung_of(metric_ratio=ratio, batch_flips=flips, different_answers=3, **cosines)
    rung = rung.model_copy(update={"agreement": agreement})
    with LIMITS.but(**{limit: value}).applied() as gates:
        assert failed(ladder.checks(rung, gates)) == []
    with LIMITS.but(**{limit: value * (0.999 if limit.startswith("max") else 1.001)}).applied() as gates:
        assert failed(ladder.checks(rung, gates)) == [figure]
    gates = LIMITS.but(min_metric_ratio=0.97).gates
    assert ladder.no_worse_than(rung, gates) == gates, "a weaker rung lowers no limit"


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
    assert failed(rung_of(package).checks) == []
    damage_int8(package, damage)
    assert failed(rung_of(package).checks) == [figure]


def test_one_text_is_too_few_to_pass_the_gates(package: Path) -> None:
    rung = rung_of(package, sample=sample_of(["small models answer"]))
    assert rung.agreement.value == 1
    assert failed(rung.checks) == [check.name for check in lacking(rung)] == ["agreement_texts", "metric_items"]


def test_a_constant_answer_of_fp32_fails_the_distinct_answers_check(tiny_package: TinyPackage) -> None:
    """All texts are of one class, and INT8 gives that class to every text."""
    package = tiny_package(packages.write_classifier)
    every = [f"{one} {other}" for one in "abcdefg" for other in "hijk"]
    named = [best.label for (best,) in load(package).classify(every)]
    of_one = [text for text, label in zip(every, named, strict=True) if label == packages.LABELS[1]]
    damage_int8(package, say_one_label)
    gates = LIMITS.but(min_different_answers=2)
    alike, different = (rung_of(package, gates, sample_of(texts)) for texts in (of_one, every))
    assert (alike.agreement.value, alike.metric_ratio.value) == (1, 1)
    assert failed(alike.checks) == [check.name for check in lacking(alike)] == ["different_answers"]
    assert failed(different.checks) == ["agreement"]


def test_labels_changed_by_other_texts_are_counted_relative_to_given_labels(
    topics_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run with others, one text loses its labels: a large share of the few given labels, not of all labels."""
    manifest, fp32 = read_manifest(topics_package), topics_package / FILES.fp32
    proof = Proof(fp32, manifest, sample_of(SENTENCES), LIMITS.gates)
    given_A = np.array([1, 0, 0] * 5)
    rounds = iter([given_A, given_A, *[given_A * (np.arange(15) >= 3)] * 3])
    monkeypatch.setattr(exams, "answers", lambda *asked: next(rounds))
    flips = proof.rung(fp32, packages.SCHEME).batch_flips
    assert (flips.value, flips.num_items) == (pytest.approx(1 / 5), 15)


def test_saturating_sums_are_detected_and_refused(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real saturation depends on the processor, so here another graph gives the wide sums."""
    opened = ladder.open_graph

    def other_if_wide(path: Path, given: Manifest, *, wide_sums: bool = False) -> object:
        return opened(package / FILES.fp32 if wide_sums else path, given)

    monkeypatch.setattr(ladder, "open_graph", other_if_wide)
    rung = rung_of(package)
    assert (rung.saturation > 0, failed(rung.checks)) == (True, ["saturation"])


def no_number_in(place: int, values: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    for number, value in enumerate(values):
        yield value * np.nan if number == place else value


def test_nan_fails_the_checks_of_saturation_and_of_batches(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first compares with fp32, the others are one per grouping.
    given = iter(no_number_in(2, [np.ones(3, dtype=np.float32)] * 4))
    monkeypatch.setattr(ladder, "_cosines", lambda *answers: next(given))
    monkeypatch.setattr(ladder.exams, "logits", lambda *given: no_number_in(1, logits(*given)))
    rung = rung_of(package)
    again = Rung.model_validate_json(rung.model_dump_json())
    assert failed(rung.checks) == failed(again.checks) == ["batch_cosine_min", "saturation"]
    assert math.isnan(again.saturation)


LADDER = tuple(
    RungParams(weights="int7", exact_share=share, quantize_embeddings=True) for share in (0.0, 0.01, 0.1, 0.5)
)
MASK_ID, OUTLIER_CHANNELS = 4, 6
EncoderOf = Callable[[float], Path]
GATES = LIMITS.but(min_agreement_texts=3, min_metric_items=1, min_embedding_cosine=0.9, min_token_cosine=0.9)
OPEN = GATES.but(min_agreement=0.5)


@pytest.fixture(scope="module")
def encoder_of(small_encoder: Path, save_trained: Callable[[Any], Path]) -> EncoderOf:
    """`encoder_of(outliers)`: the last product of a layer has some channels so many times as large, and its weights for
    them as much smaller: fp32 answers the same to the bit.
    """

    def encoder_of(outliers: float) -> Path:
        model = ModernBertForMaskedLM.from_pretrained(small_encoder)
        layer = model.model.layers[1]
        with torch.no_grad():
            # Random layers change the vectors so little that each mask gets the answer of the vector of [MASK].
            model.get_input_embeddings().weight[MASK_ID] = 0
            for weight in (*model.model.layers.parameters(), model.head.dense.weight):
                weight *= 8 if weight.ndim == 2 else 1
            width = layer.mlp.Wi.out_features // 2
            layer.mlp.Wi.weight[width : width + OUTLIER_CHANNELS] *= outliers
            layer.mlp.Wo.weight[:, :OUTLIER_CHANNELS] /= outliers
        return save_trained(model)

    return encoder_of


def metrics_beside(package: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((package.parent / "metrics.json").read_text(encoding="utf-8"))
    return metrics


def test_the_product_that_outlier_channels_spoil_is_kept_in_fp32(
    encoder_of: EncoderOf, export_model: ExportModel
) -> None:
    """A token's own scale leaves the other channels no digits. Of four rungs two are tried: 1 % and 10 % of nine
    products are both one product.
    """
    climbed = export_model(encoder_of(1024.0), ladder=LADDER, limits=GATES, static_ratios=())
    manifest, metrics = read_manifest(climbed), metrics_beside(climbed)
    plain, mended = manifest.ladder
    assert (failed(plain.checks), failed(mended.checks)) == (["agreement"], [])
    (left_out,) = set(mended.scheme.exact_matmuls) - set(plain.scheme.exact_matmuls)
    assert left_out.endswith("layers.1.mlp.output")
    assert mended.agreement.value > 0.9 > plain.agreement.high
    assert (manifest.served, manifest.quantization) == ("int8", mended.scheme)
    assert mended.size_bytes == (climbed / FILES.int8).stat().st_size
    for rung in manifest.ladder:
        assert (rung.metric, rung.saturation) == ("masked-LM accuracy", 0)
        for figure in (rung.agreement, rung.metric_ratio):
            assert figure.low <= figure.value <= figure.high
            assert figure.num_items > 100
        assert rung.batch_flips.num_items > rung.agreement.num_items
    assert [Rung.model_validate(rung) for rung in metrics["ladder"]] == [plain, mended]
    assert (metrics["served"], metrics["int8_agreement"]) == ("int8", mended.agreement.value)


def test_fp32_is_served_with_the_reason_if_no_scheme_passes(
    encoder_of: EncoderOf, export_model: ExportModel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        refused = export_model(encoder_of(1024.0), ladder=LADDER[:1], limits=GATES)
    assert "no INT8 scheme of the ladder passed its gates: fp32 is served" in caplog.text
    manifest = read_manifest(refused)
    assert (manifest.served, manifest.quantization, manifest.precisions) == ("fp32", None, ("fp32",))
    assert not (refused / FILES.int8).exists()
    verify(refused, manifest)
    text = ["the encoder reads a [MASK]"]
    assert load(refused).fill(text) == load(refused, precision="fp32").fill(text)
    with pytest.raises(ArtifactError, match="no INT8 scheme of its `ladder` passed"):
        load(refused, precision="int8")
    assert measure(refused, batch_texts=2, repeats=1).int8_speedup is None


def test_fixed_scales_are_served_if_tokens_have_similar_ranges(
    encoder_of: EncoderOf, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With random weights, single answers depend on the processor's rounding: fixed scales need not equal others.
    monkeypatch.setattr(ladder, "no_worse_than", lambda rung, gates: gates)
    package = export_model(encoder_of(1.0), limits=OPEN, static_ratios=(8.0, 2.0))
    manifest, metrics = read_manifest(package), metrics_beside(package)
    dynamic, *_, static = manifest.ladder
    assert (dynamic.is_passed, dynamic.scheme.static_activations) == (True, ())
    assert manifest.quantization == static.scheme
    assert 0 < static.scheme.static_ratio <= 8
    num_static = len(static.scheme.static_activations)
    fp32, int8 = (op_counts(read_graph(package / file))["ReduceMax"] for file in (FILES.fp32, FILES.int8))
    assert 0 < num_static == static.scheme.quantized_activations - (int8 - fp32) <= 9
    assert static.embedding_cosine_mean is not None
    assert static.embedding_cosine_mean > 0.98
    assert static.batch_flips.value == 0
    assert (metrics["static_activations"], metrics["int8_agreement"]) == (num_static, static.agreement.value)


def test_fixed_scales_below_the_interval_of_run_time_scales_are_reported_and_not_served(
    encoder_of: EncoderOf, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranges are far too narrow here: most values of a token are clipped. Those that differ too much between tokens
    are not tried.
    """
    encoder = encoder_of(1.0)
    untried = export_model(encoder, limits=OPEN, static_ratios=(0.01,))
    assert len(read_manifest(untried).ladder) == 1
    monkeypatch.setattr(fixed_scales, "_HEADROOM", 0.1)
    package = export_model(encoder, limits=OPEN, static_ratios=(8.0,))
    manifest, metrics = read_manifest(package), metrics_beside(package)
    dynamic, refused = manifest.ladder
    limits, own = ({check.name: check.limit for check in rung.checks} for rung in (refused, dynamic))
    assert limits["agreement"] == dynamic.agreement.low > own["agreement"] == OPEN.gates.min_agreement
    assert limits["metric_ratio"] == min(dynamic.metric_ratio.low, 1)
    assert (refused.is_passed, manifest.quantization) == (False, dynamic.scheme)
    assert (package / FILES.int8).read_bytes() == (untried / FILES.int8).read_bytes()
    verify(package, manifest)
    assert (metrics["static_activations"], metrics["int8_agreement"]) == (0, dynamic.agreement.value)
