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
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, BertConfig, BertForMaskedLM

from clozeline.exporting.graph import op_counts
from clozeline.exporting.packaging import write_client_config
from clozeline.exporting.quantization import PRODUCT
from clozeline.exporting.to_onnx import ATTENTION
from clozeline.exporting.trained import open_trained
from clozeline.inference.package import load
from clozeline.params.delivery import RungParams
from clozeline.params.reading import read_params
from clozeline.records import package as packages
from clozeline.records.package import CARD, CONFIG, FILES, SBOM, read_manifest, verify
from clozeline.system.errors import ArtifactError, GateError
from tests.make.models import OPEN, PROJECT, SENTENCES, run_export
from tests.make.packages import card_in
from tests.make.tasks import contents

ExportModel = Callable[..., Path]


def metrics_of(package: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((package.parent / "metrics.json").read_text(encoding="utf-8"))
    return metrics


def test_a_package_is_complete_passes_verification_and_its_manifest_says_how_it_was_made(
    encoder_package: Path, classifier_package: Path, small_encoder: Path
) -> None:
    for package, more in ((encoder_package, {CARD, SBOM}), (classifier_package, {CARD, CONFIG, SBOM})):
        manifest = read_manifest(package)
        assert {file.name for file in package.iterdir()} == {*FILES, *more}
        assert set(manifest.files) == {*FILES, *more} - {FILES.manifest}
        verify(package, manifest)
        for graph in (onnx.load(package / name).graph for name in (FILES.fp32, FILES.int8)):
            for specs, values in ((manifest.inputs, graph.input), (manifest.outputs, graph.output)):
                declared = {spec.name: list(spec.shape) for spec in specs}
                axes = {value.name: value.type.tensor_type.shape.dim for value in values}
                found = {name: [axis.dim_param or axis.dim_value for axis in shape] for name, shape in axes.items()}
                assert list(found) == list(declared)
                assert [len(shape) for shape in found.values()] == [len(shape) for shape in declared.values()]
                assert values is graph.input or found == declared
            kinds = {spec.name: {"int64": 7, "float32": 1, "bool": 9}[spec.dtype] for spec in manifest.inputs}
            assert kinds == {value.name: value.type.tensor_type.elem_type for value in graph.input}
    manifest = read_manifest(encoder_package)
    assert manifest.lock_sha256 == packages.record_of(encoder_package.parent / "requirements.lock").sha256
    assert {"torch", "transformers", "onnxruntime", "onnxscript", "optimum"} <= set(manifest.versions)
    places = (sys.prefix, sys.base_prefix, tempfile.gettempdir(), PROJECT, small_encoder, Path.home(), "site-packages")
    for name, content in contents(encoder_package).items():
        assert [place for place in places if str(place).encode() in content] == [], name
        assert re.findall(rb"/[\w./-]+\.py\b", content) == [], name


def test_the_model_card_says_what_the_export_measured(encoder_package: Path) -> None:
    manifest, card = read_manifest(encoder_package), card_in(encoder_package)
    told = card.sections["Package"]
    assert card.facts == {"library_name": "onnxruntime", "pipeline_tag": "fill-mask"}
    agreement = next(rung.agreement for rung in manifest.ladder if rung.is_passed)
    assert f"{agreement.value:.4f} (95 %: {agreement.low:.4f} to {agreement.high:.4f})" in told
    figures = re.findall(r"- (perplexity|top1): ([\d.]+) \(95 %: ([\d.]+) to ([\d.]+)\)", told)
    assert [name for name, *_ in figures] == ["perplexity", "top1"]
    assert all(float(low) <= float(value) <= float(high) for _, value, low, high in figures)
    assert figures[1][1] == f"{manifest.ladder[-1].fp32_metric:.4f}", "equal to the comparison with INT8"
    assert f"Longest text: {manifest.max_length:,} tokens" in told


def test_the_metrics_count_the_compared_items_and_the_quantized_products(
    encoder_package: Path, classifier_package: Path
) -> None:
    encoder, classifier = metrics_of(encoder_package), metrics_of(classifier_package)
    for metrics, package in ((encoder, encoder_package), (classifier, classifier_package)):
        assert metrics["fp32_size_bytes"] == (package / FILES.fp32).stat().st_size
        assert metrics["int8_size_bytes"] == (package / FILES.int8).stat().st_size
        assert metrics["parity_max_abs_difference"] < 1e-5
        assert metrics["num_agreement_texts"] == 32
        assert metrics["served"] == read_manifest(package).served == "int8"
        counts = op_counts(onnx.load(package / FILES.int8))
        assert (counts[PRODUCT], counts["MatMul"]) == (metrics["quantized_matmuls"], metrics["float_matmuls"])
    assert (encoder["int8_agreement"] > 0.95, encoder["embedding_cosine_mean"] > 0.999) == (True, True)
    assert encoder["quantized_matmuls"] == 2 * 4 + 1, "Wqkv, Wo, Wi, Wo of both layers, and the vocabulary"
    assert (classifier["num_agreement_items"], encoder["num_agreement_items"] > 100) == (32, True)
    assert [metrics["last_layer"] for metrics in (encoder, classifier)] == ["masked positions", "first position"]
    manifest = read_manifest(classifier_package)
    assert (manifest.label_scores, manifest.decision_threshold, manifest.reads_pairs) == ("softmax", None, False)


HEADS = {
    "tagger_package": {"labels": ("O", "B-thing", "I-thing", "B-act", "I-act"), "last_layer": "every position"},
    "answerer_package": {"no_answer_margin": 0.25, "types_tell_pairs": True},
    "topics_package": {"label_scores": "sigmoid", "decision_threshold": 0.45, "types_tell_pairs": False},
    "scorer_package": {"labels": ()},
}


@pytest.mark.parametrize(
    ("package", "metric", "outputs", "num_texts"),
    [
        ("tagger_package", "entity F1", "logits", 5),
        ("answerer_package", "answer F1", "start_logits end_logits", 3),
        ("topics_package", "micro F1", "logits", 5),
        ("scorer_package", "Spearman correlation", "sentence_embedding last_hidden_state", 10),
    ],
)
def test_a_head_is_tested_on_held_out_items_that_the_package_does_not_contain(
    request: pytest.FixtureRequest, package: str, metric: str, outputs: str, num_texts: int
) -> None:
    folder: Path = request.getfixturevalue(package)
    manifest, metrics, facts = read_manifest(folder), metrics_of(folder), HEADS[package]
    assert [output.name for output in manifest.outputs] == outputs.split()
    assert {name: getattr(manifest, name) for name in facts} == facts, "how outputs are decoded"
    assert {rung.metric for rung in manifest.ladder} == {metric}
    assert (metrics["num_agreement_texts"], metrics["parity_max_abs_difference"] < 1e-4) == (num_texts, True)
    assert all(rung.saturation == 0 and rung.batch_flips.value == 0 for rung in manifest.ladder)
    assert not any(SENTENCES[0].encode() in content for content in contents(folder).values())


def test_a_package_has_the_transformers_configuration_without_code_paths_or_dtypes(
    tagger_package: Path, small_tagger: Path, tmp_path: Path
) -> None:
    """Optimum opens a package by it."""
    config = AutoConfig.from_pretrained(tagger_package, local_files_only=True, trust_remote_code=False)
    assert (config.model_type, config.architectures) == ("bert", ["BertForTokenClassification"])
    assert tuple(config.id2label.values()) == read_manifest(tagger_package).labels
    foreign = {"_name_or_path": str(tmp_path), "auto_map": {"AutoConfig": "code.Config"}, "dtype": "float32"}
    (tmp_path / CONFIG).write_text(json.dumps(json.loads((small_tagger / CONFIG).read_text()) | foreign))
    (tmp_path / "out").mkdir()
    write_client_config(replace(open_trained(small_tagger), folder=tmp_path), tmp_path / "out")
    assert not foreign.keys() & json.loads((tmp_path / "out" / CONFIG).read_text()).keys()


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


def test_a_repeated_export_from_another_environment_path_gives_the_same_bytes(
    encoder_package: Path, small_encoder: Path, validation_texts: Path, tmp_path: Path
) -> None:
    """The other process has other set orders and another number of threads, and has exported the same graph before."""
    environment, again = tmp_path / "environment", tmp_path / "again"
    environment.mkdir()
    for package in Path(torch.__file__).parents[1].iterdir():
        (environment / package.name).symlink_to(package)
    shutil.copytree(PROJECT / "src" / "clozeline", environment / "clozeline")
    subprocess.run(
        [sys.executable, "-S", "-c", AGAIN, *map(str, (environment, small_encoder, validation_texts, again))],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(environment), "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"},
        check=True,
    )
    assert contents(again / "model") == contents(encoder_package)
    assert metrics_of(again / "model") == metrics_of(encoder_package)


def test_int8_takes_about_a_quarter_of_the_bytes_of_fp32(
    save_trained: Callable[[Any], Path], export_model: ExportModel
) -> None:
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(vocab_size=8000, **shape))
    metrics = metrics_of(export_model(save_trained(model)))
    assert metrics["int8_size_bytes"] < 0.30 * metrics["fp32_size_bytes"]
    # Each of the two files holds the vocabulary table only once.
    assert metrics["fp32_size_bytes"] < 1.1 * 4 * model.num_parameters()


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


def test_knobs_reach_the_graph(small_encoder: Path, export_model: ExportModel, encoder_package: Path) -> None:
    rung = RungParams(weights="int7", exact_share=0.0, quantize_embeddings=False)
    package = export_model(small_encoder, limits=OPEN, opset=18, ladder=(rung,), static_ratios=())
    scheme = read_manifest(package).quantization
    assert scheme is not None
    assert (scheme.embeddings, scheme.weights) == ("float32", "int8 per column, symmetric")
    assert scheme.activations == "uint8 per token, dynamic"
    usual = read_params(PROJECT / "params.yaml").export.opset
    for folder, opset, num_fused in ((package, 18, 0), (encoder_package, usual, 2)):
        graph = onnx.load(folder / FILES.int8)
        assert next(it.version for it in graph.opset_import if not it.domain) == read_manifest(folder).opset == opset
        assert op_counts(graph)[ATTENTION] == num_fused


@pytest.mark.parametrize(("fault", "told"), [("parity", "max_parity_difference"), ("model", "holds no model")])
def test_a_refused_export_leaves_the_old_package(
    small_encoder: Path, validation_texts: Path, tmp_path: Path, fault: str, told: str
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("old", encoding="utf-8")
    given = small_encoder if fault == "parity" else tmp_path / "nothing"
    with pytest.raises(GateError if fault == "parity" else ArtifactError, match=told):
        run_export(given, validation_texts, tmp_path, max_parity_difference=1e-12)
    assert contents(tmp_path).keys() == {"model/old", "requirements.lock"}


def test_the_documented_onnxruntime_lines_give_our_embeddings_without_warnings(
    encoder_package: Path, tmp_path: Path
) -> None:
    docs = (PROJECT / "docs" / "clients.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"<!-- plain: .*?```python\n(.*?)```", docs, re.DOTALL)
    shutil.copytree(encoder_package, tmp_path / "dist" / "encoder")
    command = [sys.executable, "-c", f"{code}\nprint(vectors_BH.tolist())"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stderr == ""
    model: Any = load(encoder_package, precision="fp32")
    ours = model.embed(["Sort a list in place.", "Open a file."])
    np.testing.assert_allclose(json.loads(told.stdout), ours, atol=1e-5)
    manifest, tokenizer = read_manifest(encoder_package), Tokenizer.from_file(str(encoder_package / FILES.tokenizer))
    long, short = tokenizer.encode_batch(["the model " * manifest.max_length, "the model"])
    assert len(long) == len(short) == manifest.max_length > sum(short.attention_mask)
    assert set(short.ids[sum(short.attention_mask) :]) == {manifest.special_tokens.pad_id}
