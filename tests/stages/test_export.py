"""The export stage: what it leaves behind, that it leaves the same again, and when it leaves nothing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from pydantic import ValidationError
from transformers import BertConfig, BertForMaskedLM

from clozeline.errors import ArtifactError, GateError
from clozeline.exporting.attention import ATTENTION
from clozeline.exporting.graph import op_counts, read_graph
from clozeline.exporting.ladder import Climbed, Ladder, Passed
from clozeline.exporting.proof import Proof
from clozeline.exporting.quantization import PRODUCT, Quantized
from clozeline.exporting.sample import Sample, read_sample
from clozeline.held_out import HeldOut, write_held_out
from clozeline.inference.errors import NotANumberError
from clozeline.inference.manifest import FILES, HALF_GRAPH, Manifest, read_manifest, record_of, verify
from clozeline.inference.package import load
from clozeline.params import ExportGates, ExportParams, RungParams, read_params
from clozeline.stages import export
from tests.tiny_models import SENTENCES
from tests.trained_models import PROJECT

ExportModel = Callable[..., Path]
OPEN = ExportGates(
    min_agreement=0,
    min_agreement_texts=1,
    min_different_answers=1,
    min_metric_ratio=0,
    min_metric_items=1,
    min_embedding_cosine=0,
    max_batch_flips=1,
    min_batch_cosine=0,
)


@pytest.fixture(scope="module")
def params() -> ExportParams:
    return read_params(Path(__file__).parents[2] / "params.yaml").export


def metrics_of(package: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((package.parent / "metrics.json").read_text(encoding="utf-8"))
    return metrics


def test_a_package_is_whole_and_verified_by_its_manifest(encoder_package: Path, classifier_package: Path) -> None:
    for package in (encoder_package, classifier_package):
        assert {file.name for file in package.iterdir()} == set(FILES)
        verify(package, read_manifest(package))


def test_the_manifest_says_what_the_graphs_take_and_give(encoder_package: Path, classifier_package: Path) -> None:
    for package in (encoder_package, classifier_package):
        manifest = read_manifest(package)
        for name in (FILES.fp32, FILES.int8):
            graph = onnx.load(package / name).graph
            for specs, values in ((manifest.inputs, graph.input), (manifest.outputs, graph.output)):
                declared = {spec.name: list(spec.shape) for spec in specs}
                found = {
                    value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
                    for value in values
                }
                assert list(found) == list(declared)
                assert [len(shape) for shape in found.values()] == [len(shape) for shape in declared.values()]
                assert values is graph.input or found == declared
            kinds = {spec.name: {"int64": 7, "float32": 1, "bool": 9}[spec.dtype] for spec in manifest.inputs}
            assert kinds == {value.name: value.type.tensor_type.elem_type for value in graph.input}


def test_the_manifest_names_the_lock_and_the_tools(encoder_package: Path) -> None:
    manifest = read_manifest(encoder_package)
    assert manifest.lock_sha256 == record_of(encoder_package.parent / "requirements.lock").sha256
    assert {"torch", "transformers", "onnxruntime", "optimum-onnx"} <= set(manifest.versions)


def test_what_is_recorded_is_validated_not_taken_as_it_comes(encoder_package: Path) -> None:
    """The manifest that was just written is read again elsewhere: a wrong kind of figure is to be found here."""
    manifest = read_manifest(encoder_package)
    rung = next(rung for rung in manifest.ladder if rung.scheme == manifest.quantization)
    graph = read_graph(encoder_package / FILES.int8)
    for num_matmuls, is_sound in ((7, True), ("many", False)):
        quantized = Quantized(graph, num_matmuls, 1, (), 5, {})  # type: ignore[arg-type]
        climbed = Climbed(manifest.ladder, Passed(rung, quantized))
        with nullcontext() if is_sound else pytest.raises(ValidationError, match="quantized_matmuls"):
            record = export._record(encoder_package, 5, 0.0, climbed, manifest)
            assert (record.served, record.quantized_matmuls) == (manifest.served, num_matmuls)
    with pytest.raises(ValidationError, match="half"):
        export._manifest(encoder_package, manifest, climbed, "none")  # type: ignore[arg-type]


def test_the_metrics_count_what_was_compared(encoder_package: Path, classifier_package: Path) -> None:
    encoder, classifier = metrics_of(encoder_package), metrics_of(classifier_package)
    for metrics, package in ((encoder, encoder_package), (classifier, classifier_package)):
        assert metrics["fp32_size_bytes"] == (package / FILES.fp32).stat().st_size
        assert metrics["int8_size_bytes"] == (package / FILES.int8).stat().st_size
        assert metrics["parity_max_abs_difference"] < 1e-5
        assert metrics["num_agreement_texts"] == 32
        assert metrics["served"] == read_manifest(package).served == "int8"
    assert encoder["int8_agreement"] > 0.95
    assert encoder["embedding_cosine_mean"] > 0.999
    assert encoder["num_agreement_items"] > 100
    assert classifier["num_agreement_items"] == 32
    assert "embedding_cosine_mean" not in classifier


@pytest.mark.parametrize(
    ("package", "metric", "outputs", "num_texts"),
    [
        ("tagger_package", "entity F1", ["logits"], 5),
        ("answerer_package", "answer F1", ["start_logits", "end_logits"], 3),
        ("topics_package", "micro F1", ["logits"], 5),
        ("scorer_package", "Spearman correlation", ["sentence_embedding"], 10),
    ],
)
def test_a_head_is_held_to_the_items_of_its_task_and_none_is_in_the_package(
    request: pytest.FixtureRequest, package: str, metric: str, outputs: list[str], num_texts: int
) -> None:
    folder: Path = request.getfixturevalue(package)
    manifest = read_manifest(folder)
    assert {file.name for file in folder.iterdir()} <= set(FILES)
    assert [output.name for output in manifest.outputs] == outputs
    assert {rung.metric for rung in manifest.ladder} == {metric}
    assert metrics_of(folder)["num_agreement_texts"] == num_texts
    assert metrics_of(folder)["parity_max_abs_difference"] < 1e-4
    assert all(rung.saturation == 0 and rung.batch_flips.value == 0 for rung in manifest.ladder)
    assert all(SENTENCES[0].encode() not in (folder / name).read_bytes() for name in FILES if (folder / name).exists())


def test_the_manifest_tells_how_a_head_is_read(
    tagger_package: Path, answerer_package: Path, topics_package: Path, classifier_package: Path
) -> None:
    tagger, answerer, topics, single = map(
        read_manifest, (tagger_package, answerer_package, topics_package, classifier_package)
    )
    assert tagger.labels == ("O", "B-thing", "I-thing", "B-act", "I-act")
    assert (answerer.no_answer_margin, answerer.types_tell_pairs) == (0.25, True)
    assert (topics.label_scores, topics.decision_threshold, topics.types_tell_pairs) == ("sigmoid", 0.45, False)
    assert (single.label_scores, single.decision_threshold, single.reads_pairs) == ("softmax", None, False)


def test_manifest_and_metrics_say_where_the_last_layer_is_computed(
    encoder_package: Path, tagger_package: Path, topics_package: Path, classifier_package: Path
) -> None:
    """Heads of sequence classifiers read the first position; tags are said of every one."""
    for package, told in (
        (encoder_package, "masked positions"),
        (topics_package, "first position"),
        (classifier_package, "first position"),
        (tagger_package, "every position"),
    ):
        assert read_manifest(package).last_layer == metrics_of(package)["last_layer"] == told


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


AGAIN = """
import sys
from pathlib import Path
from tests.trained_models import run_export
run_export(*map(Path, sys.argv[1:]))
"""


def test_a_second_export_gives_the_same_bytes(
    encoder_package: Path, small_encoder: Path, validation_texts: Path, tmp_path: Path
) -> None:
    """In a process of its own: another order in every set of names, and another number of threads."""
    subprocess.run(
        [sys.executable, "-c", AGAIN, str(small_encoder), str(validation_texts), str(tmp_path)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"},
        check=True,
    )
    for name in FILES:
        assert (tmp_path / "model" / name).read_bytes() == (encoder_package / name).read_bytes(), name
    assert metrics_of(tmp_path / "model") == metrics_of(encoder_package)


def test_no_path_of_this_machine_is_in_the_package(encoder_package: Path, small_encoder: Path) -> None:
    for name in FILES:
        content = (encoder_package / name).read_bytes()
        assert b"site-packages" not in content
        assert str(small_encoder).encode() not in content
        assert str(Path.home()).encode() not in content


def test_the_int8_file_is_about_a_quarter_and_that_in_half_the_half(
    save_trained: Callable[[Any], Path], export_model: ExportModel
) -> None:
    config = BertConfig(
        vocab_size=8000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256
    )
    torch.manual_seed(0)
    package = export_model(save_trained(BertForMaskedLM(config)), half=True)
    metrics = metrics_of(package)
    assert metrics["int8_size_bytes"] < 0.30 * metrics["fp32_size_bytes"]
    assert metrics["half"]["size_bytes"] < 0.55 * metrics["fp32_size_bytes"]
    # The vocabulary table is there once, in both files.
    assert metrics["fp32_size_bytes"] < 1.1 * 4 * BertForMaskedLM(config).num_parameters()


def test_a_graph_too_large_for_one_file_is_a_whole_package_too(
    small_encoder: Path, export_model: ExportModel, encoder_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as lowered:
        lowered.setattr("clozeline.exporting.graph._MAX_FILE_BYTES", 10_000)
        package = export_model(small_encoder)
    manifest = read_manifest(package)
    weights = [f"{FILES.fp32}.data", f"{FILES.int8}.data"]
    assert sorted(manifest.files) == sorted({file.name for file in package.iterdir()} - {FILES.manifest})
    assert set(weights) < set(manifest.files)
    for precision in manifest.precisions:
        answers = load(package, precision=precision).fill(["the [MASK] reads"])
        assert answers == load(encoder_package, precision=precision).fill(["the [MASK] reads"])
    (package / weights[1]).write_bytes(b"damaged")
    with pytest.raises(ArtifactError, match=r"model\.int8\.onnx\.data"):
        load(package, precision="int8")


@dataclass
class Climbing:
    """What the stage gives a ladder to decide by, and to measure on."""

    deciding: Sequence[str] = ()
    calibrating: Sequence[str] = ()

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        climb, prove = Ladder.climb, Proof.__init__

        def proving(proof: Proof, graph: Path, manifest: Manifest, sample: Sample, gates: ExportGates) -> None:
            self.deciding = sample.texts
            prove(proof, graph, manifest, sample, gates)

        def climbing(ladder: Ladder, proof: Proof, calibration: Sequence[str]) -> Climbed:
            self.calibrating = calibration
            return climb(ladder, proof, calibration)

        monkeypatch.setattr(Proof, "__init__", proving)
        monkeypatch.setattr(Ladder, "climb", climbing)


@pytest.mark.parametrize(("num_texts", "parts"), [(40, (32, 8)), (10, (8, 2))])
def test_texts_that_scales_are_measured_on_decide_nothing(
    small_encoder: Path,
    export_model: ExportModel,
    validation_texts: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    num_texts: int,
    parts: tuple[int, int],
) -> None:
    climbing, read = Climbing(), read_sample(validation_texts, num_texts)
    climbing.watch(monkeypatch)
    monkeypatch.setattr(export, "read_sample", lambda *given: read)
    export_model(small_encoder)
    assert [*climbing.deciding, *climbing.calibrating] == read.texts
    assert (len(climbing.deciding), len(climbing.calibrating)) == parts
    told = "10 different texts: 8 decide (`export.num_agreement_texts`: 32), INT8's scales are fixed on 2"
    assert (told in caplog.text) == (num_texts == 10)


def test_what_the_metrics_count_is_what_was_asked_where_held_out_items_tell_nothing(
    small_scorer: Path, export_model: ExportModel, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(small_scorer, tmp_path / "scorer"))
    write_held_out(folder, [HeldOut(text=text, second=text, score=1.0) for text in SENTENCES])
    metrics = metrics_of(export_model(folder, gates=OPEN, static_ratios=()))
    (rung,) = metrics["ladder"]
    assert rung["metric"] == "halves found"
    assert metrics["num_agreement_texts"] == rung["agreement"]["num_texts"] == 32


def test_of_texts_that_decide_nothing_it_is_not_said_that_they_do(
    small_topics: Path,
    export_model: ExportModel,
    validation_texts: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for num_texts, num_fixed_on in ((10, 2), (1, 1)):
        read = read_sample(validation_texts, num_texts)
        monkeypatch.setattr(export, "read_sample", lambda *given, read=read: read)
        package = export_model(small_topics, gates=OPEN, static_ratios=())
        assert metrics_of(package)["num_agreement_texts"] == len(SENTENCES)
        assert f"{num_texts} different texts: INT8's scales are fixed on {num_fixed_on} (`exp" in caplog.text


def test_int8_that_was_asked_too_little_is_not_served_and_the_counts_are_said(
    small_encoder: Path,
    export_model: ExportModel,
    validation_texts: Path,
    params: ExportParams,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A single text, by the limits that params.yaml has."""
    climbing = Climbing()
    climbing.watch(monkeypatch)
    read = read_sample(validation_texts, 1)
    monkeypatch.setattr(export, "read_sample", lambda *given: read)
    gates = params.gates.model_copy(update={"min_metric_ratio": 0})
    manifest = read_manifest(export_model(small_encoder, gates=gates))
    assert (manifest.served, len(manifest.ladder)) == ("fp32", 1)
    assert "agreement_texts is 1, at least 100: NO" in caplog.text
    assert climbing.calibrating == climbing.deciding == read.texts
    assert "are fixed on 1, the same that decides" in caplog.text


def test_knobs_reach_the_graph(small_encoder: Path, export_model: ExportModel) -> None:
    rung = RungParams(weights="int7", exact_share=0.0, quantize_embeddings=False)
    knobs = {"opset": 18, "ladder": (rung,), "per_channel": False, "per_token": False, "static_ratios": ()}
    package = export_model(small_encoder, gates=OPEN, **knobs)
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


def test_a_graph_in_half_lies_beside_the_others_with_what_it_showed(half_package: Path, encoder_package: Path) -> None:
    manifest, metrics = read_manifest(half_package), metrics_of(half_package)
    assert {file.name for file in half_package.iterdir()} == {*FILES, HALF_GRAPH}
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


def test_a_second_graph_in_half_has_the_same_bytes(
    half_package: Path, small_encoder: Path, export_model: ExportModel
) -> None:
    again = export_model(small_encoder, half=True)
    assert (again / HALF_GRAPH).read_bytes() == (half_package / HALF_GRAPH).read_bytes()


def test_a_graph_in_half_that_fails_is_left_out_and_it_is_said(
    small_encoder: Path, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("clozeline.exporting.proof.LARGEST_HALF", 1e-3)
    package = export_model(small_encoder, half=True)
    manifest = read_manifest(package)
    assert {file.name for file in package.iterdir()} == set(FILES)
    assert manifest.half is not None
    assert [check.name for check in manifest.half.checks if not check.is_passed] == ["largest_value"]
    assert manifest.served == "int8"
    assert "float16 fails, and is left out: largest_value" in caplog.text


def test_a_graph_that_differs_is_refused_and_the_old_package_stays(
    params: ExportParams, small_encoder: Path, validation_texts: Path, tmp_path: Path
) -> None:
    out, metrics = tmp_path / "dist", tmp_path / "metrics.json"
    out.mkdir()
    (out / "old").write_text("old", encoding="utf-8")
    with pytest.raises(GateError, match="max_parity_difference"):
        export.run(
            params.model_copy(update={"max_parity_difference": 1e-12}),
            model=small_encoder,
            texts=validation_texts,
            lock=Path(__file__),
            out=out,
            metrics=metrics,
        )
    assert [file.name for file in tmp_path.iterdir()] == ["dist"]
    assert (out / "old").read_text(encoding="utf-8") == "old"


def test_a_package_that_gives_no_numbers_when_it_is_timed_is_no_package(
    small_encoder: Path, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is live yet: there is no version to roll back to."""

    def no_numbers(folder: Path, **asked: object) -> None:
        raise NotANumberError("no finite numbers", given="3 values", expected="finite numbers", do="clozeline rollback")

    monkeypatch.setattr(export, "measure", no_numbers)
    with pytest.raises(ArtifactError, match="train again") as refused:
        export_model(small_encoder)
    assert str(small_encoder) in str(refused.value)
    assert "rollback" not in str(refused.value)


def test_a_model_that_is_not_there_is_refused(params: ExportParams, validation_texts: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds no model"):
        export.run(
            params,
            model=tmp_path / "nothing",
            texts=validation_texts,
            lock=Path(__file__),
            out=tmp_path / "dist",
            metrics=tmp_path / "metrics.json",
        )
