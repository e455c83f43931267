"""The stage's outputs: the manifest describes them, and a second run writes the same."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoConfig, BertConfig, BertForMaskedLM

from clozeline.exporting import packaging
from clozeline.exporting.graph import read_graph
from clozeline.exporting.ladder import Climbed, Passed
from clozeline.exporting.packaging import write_client_config
from clozeline.exporting.quantization import Quantized
from clozeline.exporting.trained import open_trained
from clozeline.inference.package import load
from clozeline.records.package import CARD, CONFIG, FILES, SBOM, read_manifest, record_of, verify
from clozeline.system.errors import ArtifactError
from tests.make.models import PROJECT
from tests.make.packages import card_in
from tests.stages.export.conftest import ExportModel, metrics_of


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
    assert manifest.lock_sha256 == record_of(encoder_package.parent / "requirements.lock").sha256
    assert {"torch", "transformers", "onnxruntime", "onnxscript", "optimum"} <= set(manifest.versions)


def test_the_recorded_figures_are_validated(encoder_package: Path) -> None:
    """Figures of the wrong type fail here, not only when the manifest is read elsewhere."""
    manifest = read_manifest(encoder_package)
    rung = next(rung for rung in manifest.ladder if rung.scheme == manifest.quantization)
    graph = read_graph(encoder_package / FILES.int8)
    for num_matmuls, is_sound in ((7, True), ("many", False)):
        quantized = Quantized(graph, num_matmuls, 1, (), 5, {})  # type: ignore[arg-type]  # stand-ins
        climbed = Climbed(manifest.ladder, Passed(rung, quantized))
        with nullcontext() if is_sound else pytest.raises(ValidationError, match="quantized_matmuls"):
            record = packaging._record(encoder_package, 5, 0.0, climbed, manifest)
            assert (record.served, record.quantized_matmuls) == (manifest.served, num_matmuls)


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


def test_the_manifest_records_how_outputs_of_a_head_are_decoded(
    tagger_package: Path, answerer_package: Path, topics_package: Path, classifier_package: Path
) -> None:
    tagger, answerer, topics, single = map(
        read_manifest, (tagger_package, answerer_package, topics_package, classifier_package)
    )
    assert tagger.labels == ("O", "B-thing", "I-thing", "B-act", "I-act")
    assert (answerer.no_answer_margin, answerer.types_tell_pairs) == (0.25, True)
    assert (topics.label_scores, topics.decision_threshold, topics.types_tell_pairs) == ("sigmoid", 0.45, False)
    assert (single.label_scores, single.decision_threshold, single.reads_pairs) == ("softmax", None, False)


def test_manifest_and_metrics_state_the_positions_of_the_last_layer(
    encoder_package: Path, tagger_package: Path, topics_package: Path, classifier_package: Path
) -> None:
    """Heads of sequence classifiers read the first position; tags are predicted at every position."""
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
from tests.make.models import run_export
environment, model, texts, first, second = map(Path, sys.argv[1:])
for package in (clozeline, numpy, onnx, onnxscript, optimum, torch, transformers):
    assert Path(package.__path__[0]).is_relative_to(environment), package
for folder in (first, second):
    folder.mkdir()
    run_export(model, texts, folder)
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
    """The other process has other set orders and another number of threads, and the model is its first."""
    environment = environment_at(tmp_path / "environment")
    again = [tmp_path / "first", tmp_path / "second"]
    subprocess.run(
        [sys.executable, "-S", "-c", AGAIN, *map(str, (environment, small_encoder, validation_texts, *again))],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(environment), "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"},
        check=True,
    )
    for folder in again:
        assert hashes_of(folder / "model") == hashes_of(encoder_package)
        assert metrics_of(folder / "model") == metrics_of(encoder_package)


def hashes_of(package: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in package.iterdir()}


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
