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
from unittest.mock import patch

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, BertConfig, BertForMaskedLM

from clozeline.exporting import packaging
from clozeline.exporting.graph import op_counts
from clozeline.exporting.packaging import write_client_config
from clozeline.exporting.quantization import PRODUCT
from clozeline.exporting.to_onnx import ATTENTION
from clozeline.exporting.trained import open_trained
from clozeline.inference.language import OpenEncoder
from clozeline.inference.package import load
from clozeline.inference.tokenization import NotANumberError
from clozeline.params.delivery import RungParams
from clozeline.params.reading import read_params
from clozeline.records import package as packages
from clozeline.records.package import CARD, CONFIG, FILES, SBOM, read_manifest, verify
from clozeline.stages import export
from clozeline.system.errors import ArtifactError, GateError
from tests.make.models import OPEN, PROJECT, SENTENCES, run_export
from tests.make.packages import card_in
from tests.make.tasks import contents

ExportModel = Callable[..., Path]


def metrics_of(package: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((package.parent / "metrics.json").read_text(encoding="utf-8"))
    return metrics


def test_a_package_is_complete_and_passes_verification(encoder_package: Path, classifier_package: Path) -> None:
    for package, more in ((encoder_package, {CARD, SBOM}), (classifier_package, {CARD, CONFIG, SBOM})):
        assert {file.name for file in package.iterdir()} == {*FILES, *more}
        assert set(read_manifest(package).files) == {*FILES, *more} - {FILES.manifest}
        verify(package, read_manifest(package))


def test_the_manifest_names_the_lock_and_the_tools(encoder_package: Path) -> None:
    manifest = read_manifest(encoder_package)
    assert manifest.lock_sha256 == packages.record_of(encoder_package.parent / "requirements.lock").sha256
    assert {"torch", "transformers", "onnxruntime", "onnxscript", "optimum"} <= set(manifest.versions)


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
    assert manifest.num_positions is not None
    assert manifest.max_length <= manifest.num_positions
    assert f"Longest text: {manifest.max_length:,} tokens" in told


def test_a_package_has_the_transformers_configuration_without_code_paths_or_dtypes(
    tagger_package: Path, small_tagger: Path, tmp_path: Path
) -> None:
    """Optimum opens a package by it."""
    config = AutoConfig.from_pretrained(tagger_package, local_files_only=True, trust_remote_code=False)
    assert (config.model_type, config.architectures) == ("bert", ["BertForTokenClassification"])
    assert tuple(config.id2label.values()) == read_manifest(tagger_package).labels
    told = json.loads((small_tagger / CONFIG).read_text(encoding="utf-8"))
    foreign = {"_name_or_path": str(tmp_path), "auto_map": {"AutoConfig": "code.Config"}, "dtype": "float32"}
    for folder in ("tagger", "out"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tagger" / CONFIG).write_text(json.dumps(told | foreign), encoding="utf-8")
    write_client_config(replace(open_trained(small_tagger), folder=tmp_path / "tagger"), tmp_path / "out")
    assert not foreign.keys() & json.loads((tmp_path / "out" / CONFIG).read_text(encoding="utf-8")).keys()


def test_the_manifest_lists_inputs_and_outputs_of_the_graphs(encoder_package: Path, classifier_package: Path) -> None:
    for package in (encoder_package, classifier_package):
        manifest = read_manifest(package)
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
        assert metrics["last_layer"] == read_manifest(package).last_layer
        counts = op_counts(onnx.load(package / FILES.int8))
        assert (counts[PRODUCT], counts["MatMul"]) == (metrics["quantized_matmuls"], metrics["float_matmuls"])
    assert (encoder["int8_agreement"] > 0.95, encoder["embedding_cosine_mean"] > 0.999) == (True, True)
    assert encoder["num_agreement_items"] > 100
    assert encoder["quantized_matmuls"] == 2 * 4 + 1, "Wqkv, Wo, Wi, Wo of both layers, and the vocabulary"
    assert (classifier["num_agreement_items"], "embedding_cosine_mean" in classifier) == (32, False)
    assert [metrics["last_layer"] for metrics in (encoder, classifier)] == ["masked positions", "first position"]
    manifest = read_manifest(classifier_package)
    assert (manifest.label_scores, manifest.decision_threshold, manifest.reads_pairs) == ("softmax", None, False)


TAGS = ("O", "B-thing", "I-thing", "B-act", "I-act")
ONE_OUTPUT, SPAN, VECTORS = ["logits"], ["start_logits", "end_logits"], ["sentence_embedding", "last_hidden_state"]
PAIR = {"no_answer_margin": 0.25, "types_tell_pairs": True}
SIGMOID = {"label_scores": "sigmoid", "decision_threshold": 0.45, "types_tell_pairs": False}


@pytest.mark.parametrize(
    ("package", "metric", "outputs", "num_texts", "facts"),
    [
        ("tagger_package", "entity F1", ONE_OUTPUT, 5, {"labels": TAGS, "last_layer": "every position"}),
        ("answerer_package", "answer F1", SPAN, 3, PAIR),
        ("topics_package", "micro F1", ONE_OUTPUT, 5, SIGMOID),
        ("scorer_package", "Spearman correlation", VECTORS, 10, {"labels": ()}),
    ],
)
def test_a_head_is_tested_on_held_out_items_that_the_package_does_not_contain(
    request: pytest.FixtureRequest, package: str, metric: str, outputs: list[str], num_texts: int, facts: dict[str, Any]
) -> None:
    folder: Path = request.getfixturevalue(package)
    manifest, metrics = read_manifest(folder), metrics_of(folder)
    assert [output.name for output in manifest.outputs] == outputs
    assert {name: getattr(manifest, name) for name in facts} == facts, "how outputs are decoded"
    assert {rung.metric for rung in manifest.ladder} == {metric}
    assert (metrics["num_agreement_texts"], metrics["parity_max_abs_difference"] < 1e-4) == (num_texts, True)
    assert all(rung.saturation == 0 and rung.batch_flips.value == 0 for rung in manifest.ladder)
    assert not any(SENTENCES[0].encode() in content for content in contents(folder).values())


@pytest.mark.parametrize(
    ("is_task", "num_texts", "parts", "told"),
    [
        (False, 40, (32, 8), ""),
        (False, 10, (8, 2), "10 different texts: 8 for the exam (`num_agreement_texts`: 32), 2 of 8 to calibrate INT8"),
        (False, 1, (1, 1), "1 of 8 to calibrate INT8, the same as for the exam"),
        (True, 10, (8, 2), "10 different texts: 2 of 8 to calibrate INT8"),
    ],
)
def test_calibration_texts_are_not_used_in_the_exam_and_too_few_are_reported(
    small_encoder: Path, small_topics: Path, validation_texts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    is_task: bool, num_texts: int, parts: tuple[int, int], told: str,
) -> None:  # fmt: skip
    """The exam of a task uses its held-out items, and so no texts."""
    texts = pq.read_table(validation_texts)["text"].to_pylist()[:num_texts]
    pq.write_table(pa.table({"text": texts, "source": ["one"] * num_texts}), tmp_path / "texts.parquet")
    with patch.object(export, "write_package") as write_package:
        run_export(small_topics if is_task else small_encoder, tmp_path / "texts.parquet", tmp_path)
    examined = write_package.call_args.args[1]
    assert (len(examined.deciding.texts), len(examined.calibrating)) == parts
    assert {*examined.deciding.texts, *examined.calibrating} == set(texts)
    assert told in caplog.text
    assert bool(caplog.text) == bool(told)


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


def test_no_path_of_this_machine_is_in_the_package(encoder_package: Path, small_encoder: Path) -> None:
    places = (sys.prefix, sys.base_prefix, tempfile.gettempdir(), PROJECT, small_encoder, Path.home(), "site-packages")
    for name, content in contents(encoder_package).items():
        assert [place for place in places if str(place).encode() in content] == [], name
        assert re.findall(rb"/[\w./-]+\.py\b", content) == [], name


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


def test_an_export_with_non_finite_outputs_at_timing_is_refused(small_encoder: Path, export_model: ExportModel) -> None:
    """No version is served yet, so there is none to roll back to."""
    fault = NotANumberError("3 values are not finite", do="clozeline rollback")
    with patch.object(packaging, "measure", side_effect=fault), pytest.raises(ArtifactError) as refused:
        export_model(small_encoder)
    assert str(small_encoder) in str(refused.value)
    assert "rollback" not in str(refused.value)


TEXTS = ["Sort a list in place.", "Open a file."]


def test_the_documented_onnxruntime_lines_give_our_embeddings_without_warnings(
    encoder_package: Path, tmp_path: Path
) -> None:
    docs = (PROJECT / "docs" / "clients.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- plain: .*?```python\n(.*?)```", docs, re.DOTALL)
    assert found
    _, _, code = found[1].partition("\n\n")
    assert len(code.splitlines()) <= 10, "short enough to be copied"
    shutil.copytree(encoder_package, tmp_path / "dist" / "encoder")
    command = [sys.executable, "-c", f"{found[1]}\nprint(vectors_BH.tolist())"]
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
