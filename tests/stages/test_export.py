"""The stage's package: its files describe themselves, and a second run writes the same, or none and the old one stays.

It works without Clozeline: the lines of docs/clients.md run unchanged.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, BertConfig, BertForMaskedLM

from clozeline.exporting import packaging
from clozeline.exporting.exams import Sample, read_sample
from clozeline.exporting.graph import op_counts
from clozeline.exporting.ladder import Climbed, Ladder, Proof
from clozeline.exporting.packaging import write_client_config
from clozeline.exporting.quantization import PRODUCT
from clozeline.exporting.to_onnx import ATTENTION
from clozeline.exporting.trained import open_trained
from clozeline.inference.language import OpenEncoder
from clozeline.inference.package import load
from clozeline.inference.tokenization import NotANumberError, TextTooLongError
from clozeline.params.delivery import ExportGates, ExportParams, RungParams
from clozeline.params.reading import read_params
from clozeline.records import package as packages
from clozeline.records.finetune.scored_items import HeldOut, write_held_out
from clozeline.records.package import CARD, CONFIG, FILES, SBOM, Manifest, read_manifest, verify
from clozeline.stages import export
from clozeline.system.errors import ArtifactError, GateError
from tests.make.models import OPEN, PROJECT, SENTENCES, Limits
from tests.make.packages import card_in
from tests.make.tasks import contents

ExportModel = Callable[..., Path]


@pytest.fixture(scope="module")
def params() -> ExportParams:
    return read_params(PROJECT / "params.yaml").export


def metrics_of(package: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((package.parent / "metrics.json").read_text(encoding="utf-8"))
    return metrics


def test_a_package_is_complete_and_passes_verification(encoder_package: Path, classifier_package: Path) -> None:
    for package, more in ((encoder_package, {CARD, SBOM}), (classifier_package, {CARD, CONFIG, SBOM})):
        assert {file.name for file in package.iterdir()} == {*FILES, *more}
        assert set(read_manifest(package).files) == {*FILES, *more} - {FILES.manifest}
        verify(package, read_manifest(package))


def test_the_model_card_says_what_the_export_measured(encoder_package: Path) -> None:
    manifest, card = read_manifest(encoder_package), card_in(encoder_package)
    assert card.facts == {"library_name": "onnxruntime", "pipeline_tag": "fill-mask"}
    agreement = next(rung.agreement for rung in manifest.ladder if rung.is_passed)
    told = f"{agreement.value:.4f} (95 %: {agreement.low:.4f} to {agreement.high:.4f})"
    assert f"the same answer: {told}" in card.sections["Package"]
    figures = re.findall(r"- (perplexity|top1): ([\d.]+) \(95 %: ([\d.]+) to ([\d.]+)\)", card.sections["Package"])
    assert [name for name, *_ in figures] == ["perplexity", "top1"]
    assert all(float(low) <= float(value) <= float(high) for _, value, low, high in figures)
    fp32 = manifest.ladder[-1].fp32_metric
    assert dict(figure[:2] for figure in figures)["top1"] == f"{fp32:.4f}", "equal to the comparison with INT8"
    assert manifest.num_positions is not None
    assert manifest.max_length <= manifest.num_positions
    assert f"Longest text: {manifest.max_length:,} tokens" in card.sections["Package"]


def test_a_package_has_the_transformers_configuration_that_optimum_opens_it_by(
    classifier_package: Path, tagger_package: Path, answerer_package: Path
) -> None:
    for package, family, head in (
        (classifier_package, "modernbert", "ModernBertForSequenceClassification"),
        (tagger_package, "bert", "BertForTokenClassification"),
        (answerer_package, "bert", "BertForQuestionAnswering"),
    ):
        told = json.loads((package / CONFIG).read_text(encoding="utf-8"))
        assert (told["model_type"], told["architectures"]) == (family, [head])
        config = AutoConfig.from_pretrained(package, local_files_only=True, trust_remote_code=False)
        labels = read_manifest(package).labels
        assert not labels or tuple(config.id2label.values()) == labels


def test_the_packaged_configuration_names_no_code_paths_or_dtypes(small_tagger: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_tagger, tmp_path / "tagger"))
    told = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    foreign = {"_name_or_path": str(tmp_path), "auto_map": {"AutoConfig": "code.Config"}, "dtype": "float32"}
    (folder / CONFIG).write_text(json.dumps(told | foreign), encoding="utf-8")
    trained = replace(open_trained(small_tagger), folder=folder)
    out = tmp_path / "out"
    out.mkdir()
    write_client_config(trained, out)
    assert not foreign.keys() & json.loads((out / CONFIG).read_text(encoding="utf-8")).keys()


def test_the_manifest_lists_inputs_and_outputs_of_the_graphs(encoder_package: Path, classifier_package: Path) -> None:
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
    assert manifest.lock_sha256 == packages.record_of(encoder_package.parent / "requirements.lock").sha256
    assert {"torch", "transformers", "onnxruntime", "onnxscript", "optimum"} <= set(manifest.versions)


def test_the_metrics_count_the_compared_items(encoder_package: Path, classifier_package: Path) -> None:
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


def test_the_manifest_records_how_outputs_are_decoded_and_where_the_last_layer_is_computed(
    encoder_package: Path, tagger_package: Path, answerer_package: Path, topics_package: Path, classifier_package: Path
) -> None:
    """Heads of sequence classifiers read the first position; tags are predicted at every position."""
    tagger, answerer, topics, single = map(
        read_manifest, (tagger_package, answerer_package, topics_package, classifier_package)
    )
    assert tagger.labels == ("O", "B-thing", "I-thing", "B-act", "I-act")
    assert (answerer.no_answer_margin, answerer.types_tell_pairs) == (0.25, True)
    assert (topics.label_scores, topics.decision_threshold, topics.types_tell_pairs) == ("sigmoid", 0.45, False)
    assert (single.label_scores, single.decision_threshold, single.reads_pairs) == ("softmax", None, False)
    for package, told in (
        (encoder_package, "masked positions"),
        (topics_package, "first position"),
        (classifier_package, "first position"),
        (tagger_package, "every position"),
    ):
        assert read_manifest(package).last_layer == metrics_of(package)["last_layer"] == told


AGAIN = """
import sys
from pathlib import Path
import clozeline, numpy, onnx, onnxscript, optimum, torch, transformers
from clozeline.exporting.to_onnx import export_onnx
from clozeline.exporting.trained import open_trained
from tests.make.models import run_export
environment, model, texts, again = map(Path, sys.argv[1:])
for package in (clozeline, numpy, onnx, onnxscript, optimum, torch, transformers):
    assert Path(package.__path__[0]).is_relative_to(environment), package
again.mkdir()
export_onnx(open_trained(model), 23, again / "before.onnx")
run_export(model, texts, again)
"""


def environment_at(folder: Path) -> Path:
    """Return an environment with the same packages at another path: links to them, and a copy of the code."""
    folder.mkdir()
    for package in Path(torch.__file__).parents[1].iterdir():
        (folder / package.name).symlink_to(package)
    shutil.copytree(PROJECT / "src" / "clozeline", folder / "clozeline")
    return folder


def test_a_repeated_export_from_another_environment_path_gives_the_same_bytes(
    encoder_package: Path, small_encoder: Path, validation_texts: Path, tmp_path: Path
) -> None:
    """The other process has other set orders and another number of threads, and has exported the same graph before."""
    environment, again = environment_at(tmp_path / "environment"), tmp_path / "again"
    subprocess.run(
        [sys.executable, "-S", "-c", AGAIN, *map(str, (environment, small_encoder, validation_texts, again))],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(environment), "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"},
        check=True,
    )
    assert contents(again / "model") == contents(encoder_package)
    assert metrics_of(again / "model") == metrics_of(encoder_package)


def test_no_path_of_this_machine_is_in_the_package(encoder_package: Path, small_encoder: Path) -> None:
    places = (sys.prefix, sys.base_prefix, tempfile.gettempdir(), PROJECT, small_encoder, Path.home(), "site-packages")
    for file in encoder_package.iterdir():
        content = file.read_bytes()
        assert [place for place in places if str(place).encode() in content] == [], file.name
        assert re.findall(rb"/[\w./-]+\.py\b", content) == [], file.name


def test_int8_takes_about_a_quarter_of_the_bytes_of_fp32(
    save_trained: Callable[[Any], Path], export_model: ExportModel
) -> None:
    config = BertConfig(
        vocab_size=8000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256
    )
    torch.manual_seed(0)
    package = export_model(save_trained(BertForMaskedLM(config)))
    metrics = metrics_of(package)
    assert metrics["int8_size_bytes"] < 0.30 * metrics["fp32_size_bytes"]
    # Each of the two files holds the vocabulary table only once.
    assert metrics["fp32_size_bytes"] < 1.1 * 4 * BertForMaskedLM(config).num_parameters()


def test_a_graph_too_large_for_one_file_also_gives_a_complete_package(
    small_encoder: Path, export_model: ExportModel, encoder_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as lowered:
        lowered.setattr("clozeline.exporting.graph.MAX_PROTOBUF_BYTES", 10_000)
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


def test_every_weight_product_is_in_8_bits_and_no_other(encoder_package: Path) -> None:
    """ModernBERT, 2 layers: Wqkv, Wo, Wi, Wo of each, and the vocabulary; the dense layer of the head stays."""
    counts = op_counts(onnx.load(encoder_package / FILES.int8))
    assert counts["DynamicQuantizeLinear"] == 0
    assert counts[PRODUCT] == metrics_of(encoder_package)["quantized_matmuls"] == 2 * 4 + 1
    assert counts["MatMul"] == metrics_of(encoder_package)["float_matmuls"]
    assert metrics_of(encoder_package)["quantized_embeddings"] == 1


def opset_of(graph: onnx.ModelProto) -> int:
    return next(opset.version for opset in graph.opset_import if not opset.domain)


def test_attention_is_one_operator_of_the_opset_that_params_name(encoder_package: Path, params: ExportParams) -> None:
    assert read_manifest(encoder_package).opset == params.opset
    for graph in (onnx.load(encoder_package / name) for name in (FILES.fp32, FILES.int8)):
        assert (opset_of(graph), op_counts(graph)[ATTENTION]) == (params.opset, 2)


def test_knobs_reach_the_graph(small_encoder: Path, export_model: ExportModel) -> None:
    rung = RungParams(weights="int7", exact_share=0.0, quantize_embeddings=False)
    knobs = {"opset": 18, "ladder": (rung,), "static_ratios": ()}
    package = export_model(small_encoder, limits=OPEN, **knobs)
    manifest = read_manifest(package)
    scheme = manifest.quantization
    assert scheme is not None
    assert (scheme.embeddings, scheme.weights) == ("float32", "int8 per column, symmetric")
    assert scheme.activations == "uint8 per token, dynamic"
    graph = onnx.load(package / FILES.int8)
    assert opset_of(graph) == manifest.opset == 18
    assert op_counts(graph)["Softmax"] > op_counts(graph)[ATTENTION] == 0


@pytest.mark.parametrize(("fault", "told"), [("parity", "max_parity_difference"), ("model", "holds no model")])
def test_a_refused_export_leaves_the_old_package(
    params: ExportParams, small_encoder: Path, validation_texts: Path, tmp_path: Path, fault: str, told: str
) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "old").write_text("old", encoding="utf-8")
    with pytest.raises(GateError if fault == "parity" else ArtifactError, match=told):
        export.run(
            params.model_copy(update={"max_parity_difference": 1e-12}),
            model=small_encoder if fault == "parity" else tmp_path / "nothing",
            texts=validation_texts,
            lock=Path(__file__),
            out=tmp_path / "dist",
            metrics=tmp_path / "metrics.json",
        )
    assert contents(tmp_path) == {"dist/old": b"old"}


def test_an_export_with_non_finite_outputs_at_timing_is_refused(
    small_encoder: Path, export_model: ExportModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No version is served yet, so there is none to roll back to."""

    def no_numbers(folder: Path, **asked: object) -> None:
        raise NotANumberError("3 values are not finite", do="clozeline rollback")

    monkeypatch.setattr(packaging, "measure", no_numbers)
    with pytest.raises(ArtifactError, match="train again") as refused:
        export_model(small_encoder)
    assert str(small_encoder) in str(refused.value)
    assert "rollback" not in str(refused.value)


TEXTS = ["Sort a list in place.", "Open a file."]


def lines() -> str:
    """Return the code block of docs/clients.md; it has to stay short enough to be copied."""
    docs = (PROJECT / "docs" / "clients.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- plain: .*?```python\n(.*?)```", docs, re.DOTALL)
    assert found
    _, _, code = found[1].partition("\n\n")
    assert len(code.splitlines()) <= 10
    return found[1]


def test_the_documented_onnxruntime_lines_give_our_embeddings_without_warnings(
    encoder_package: Path, tmp_path: Path
) -> None:
    shutil.copytree(encoder_package, tmp_path / "dist" / "encoder")
    command = [sys.executable, "-c", f"{lines()}\nprint(vectors_BH.tolist())"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stderr == ""
    model = load(encoder_package, precision="fp32")
    assert isinstance(model, OpenEncoder)
    np.testing.assert_allclose(json.loads(told.stdout), model.embed(TEXTS), atol=1e-5)


def test_the_tokenizer_of_a_package_truncates_long_texts_and_pads_short_ones(encoder_package: Path) -> None:
    manifest = read_manifest(encoder_package)
    tokenizer = Tokenizer.from_file(str(encoder_package / FILES.tokenizer))
    long, short = tokenizer.encode_batch(["the model " * manifest.max_length, "the model"])
    assert len(long) == len(short) == manifest.max_length
    assert set(short.ids[sum(short.attention_mask) :]) == {manifest.special_tokens.pad_id}
    assert sum(short.attention_mask) < manifest.max_length


def test_our_inference_still_counts_every_token_of_a_long_text(encoder_package: Path) -> None:
    model = load(encoder_package)
    too_long = "the model " * model.manifest.max_length
    (alone,), (beside, short) = model.tokenizer.count([too_long]), model.tokenizer.count([too_long, "the model"])
    assert alone == beside > model.manifest.max_length > short
    with pytest.raises(TextTooLongError) as refused:
        model.tokenize([too_long])
    assert f"{alone:,} tokens" in str(refused.value)
    assert len(model.tokenize([too_long], truncate=True)[0]) == model.manifest.max_length


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "metric", "outputs", "num_texts"),
    [
        ("tagger_package", "entity F1", ["logits"], 5),
        ("answerer_package", "answer F1", ["start_logits", "end_logits"], 3),
        ("topics_package", "micro F1", ["logits"], 5),
        ("scorer_package", "Spearman correlation", ["sentence_embedding", "last_hidden_state"], 10),
    ],
)
def test_a_head_is_tested_on_held_out_items_that_the_package_does_not_contain(
    request: pytest.FixtureRequest, package: str, metric: str, outputs: list[str], num_texts: int
) -> None:
    folder: Path = request.getfixturevalue(package)
    manifest = read_manifest(folder)
    assert {file.name for file in folder.iterdir()} <= {*FILES, CARD, CONFIG, SBOM}
    assert [output.name for output in manifest.outputs] == outputs
    assert {rung.metric for rung in manifest.ladder} == {metric}
    assert metrics_of(folder)["num_agreement_texts"] == num_texts
    assert metrics_of(folder)["parity_max_abs_difference"] < 1e-4
    assert all(rung.saturation == 0 and rung.batch_flips.value == 0 for rung in manifest.ladder)
    assert all(SENTENCES[0].encode() not in (folder / name).read_bytes() for name in FILES if (folder / name).exists())


Texts = Sequence[str]
Examine = Callable[..., tuple[Path, Texts, Texts, Texts]]


@pytest.fixture
def examine(export_model: ExportModel, validation_texts: Path, monkeypatch: pytest.MonkeyPatch) -> Examine:
    """`examine(model, num_texts, …)`: the package of an export that reads so many texts, these texts, and those of
    them that the stage gives a ladder for its decision and for calibration.
    """

    def examine(model: Path, num_texts: int, **options: Any) -> tuple[Path, Texts, Texts, Texts]:
        read, given = read_sample(validation_texts, num_texts), list[Texts]()
        climb, prove = Ladder.climb, Proof.__init__

        def proving(proof: Proof, graph: Path, manifest: Manifest, sample: Sample, gates: ExportGates) -> None:
            given.append(sample.texts)
            prove(proof, graph, manifest, sample, gates)

        def climbing(ladder: Ladder, proof: Proof, calibration: Texts) -> Climbed:
            given.append(calibration)
            return climb(ladder, proof, calibration)

        with monkeypatch.context() as patched:
            patched.setattr(Proof, "__init__", proving)
            patched.setattr(Ladder, "climb", climbing)
            patched.setattr(export, "read_sample", lambda *_: read)
            package = export_model(model, **options)
        deciding, calibrating = given
        return package, read.texts, deciding, calibrating

    return examine


@pytest.mark.parametrize(("num_texts", "parts"), [(40, (32, 8)), (10, (8, 2))])
def test_calibration_texts_are_not_used_in_the_exam(
    small_encoder: Path, examine: Examine, caplog: pytest.LogCaptureFixture, num_texts: int, parts: tuple[int, int]
) -> None:
    _, texts, deciding, calibrating = examine(small_encoder, num_texts)
    assert [*deciding, *calibrating] == texts
    assert (len(deciding), len(calibrating)) == parts
    told = "10 different texts: 8 for the exam (`num_agreement_texts`: 32), 2 of 8 to calibrate INT8"
    assert (told in caplog.text) == (num_texts == 10)


def test_the_metrics_count_the_texts_of_the_exam_when_held_out_items_are_useless(
    small_scorer: Path, export_model: ExportModel, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(small_scorer, tmp_path / "scorer"))
    write_held_out(folder, [HeldOut(text=text, second=text, score=1.0) for text in SENTENCES])
    metrics = metrics_of(export_model(folder, limits=OPEN, static_ratios=()))
    (rung,) = metrics["ladder"]
    assert rung["metric"] == "halves found"
    assert metrics["num_agreement_texts"] == rung["agreement"]["num_texts"] == 32


def test_unused_texts_are_not_reported_as_exam_texts(
    small_topics: Path, examine: Examine, caplog: pytest.LogCaptureFixture
) -> None:
    for num_texts, num_fixed_on in ((10, 2), (1, 1)):
        package, *_ = examine(small_topics, num_texts, limits=OPEN, static_ratios=())
        assert metrics_of(package)["num_agreement_texts"] == len(SENTENCES)
        assert f"{num_texts} different texts: {num_fixed_on} of 8 to calibrate INT8" in caplog.text


def test_int8_measured_on_too_few_texts_is_not_served_and_the_counts_are_reported(
    small_encoder: Path, examine: Examine, params: ExportParams, caplog: pytest.LogCaptureFixture
) -> None:
    """A single text, with the limits of params.yaml."""
    limits = Limits(params.gates).but(min_metric_ratio=0)
    package, texts, deciding, calibrating = examine(small_encoder, 1, limits=limits)
    manifest = read_manifest(package)
    assert (manifest.served, len(manifest.ladder)) == ("fp32", 1)
    assert "agreement_texts is 1, at least 100: NO" in caplog.text
    assert calibrating == deciding == texts
    assert "1 of 8 to calibrate INT8, the same as for the exam" in caplog.text
