"""Claim: the serving benchmarks time the graph that `make run` would serve, or their line says that they do not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from clozeline.records.package import FILES, QuantizationScheme, read_manifest
from comparison import our_package, sentences, stages
from tests.make.packages import rung_of, write_embedder


def scheme_of(package: Path) -> QuantizationScheme:
    scheme = read_manifest(package).quantization
    assert scheme is not None
    return scheme


@pytest.fixture
def package(tmp_path: Path) -> Callable[..., Path]:
    def made(agreement: float, served: str = "int8") -> Path:
        folder = tmp_path / "package"
        write_embedder(folder)
        manifest = read_manifest(folder)
        first, last = (scheme_of(folder).model_copy(update={"quantized_matmuls": number}) for number in (5, 6))
        ladder = (rung_of(first, 0.5), rung_of(last, agreement))
        quantization = last if served == "int8" else None
        changed = manifest.model_copy(update={"served": served, "ladder": ladder, "quantization": quantization})
        (folder / FILES.manifest).write_text(changed.model_dump_json(), encoding="utf-8")
        return folder

    return made


def test_the_timed_scheme_and_its_checks_are_in_the_result_line(
    package: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    line = our_package.verdict(package(agreement=0.99))
    assert (line["ours_precision"], line["ours_int8_passes"]) == ("int8", True)
    assert (line["ours_scheme"]["quantized_matmuls"], line["ours_scheme"]["static_activations"]) == (6, 0)
    assert "agreement is 0.9900, at least 0.97: yes" in line["ours_int8_checks"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("served", "told"),
    [("int8", "INT8 IS TIMED THAT WOULD NOT BE SERVED"), ("fp32", "FP32 IS TIMED, NO INT8 SCHEME PASSED")],
)
def test_a_scheme_that_fails_the_gates_of_params_yaml_is_reported_despite_lenient_export_gates(
    package: Callable[..., Path], caplog: pytest.LogCaptureFixture, served: str, told: str
) -> None:
    line = our_package.verdict(package(agreement=0.75, served=served))
    assert (line["ours_precision"], line["ours_int8_passes"]) == (served, False)
    assert (line["ours_scheme"] is None) == (served == "fp32")
    assert told in caplog.text
    assert "agreement is 0.7500, at least 0.97: NO" in caplog.text


def test_the_encoder_is_exported_by_params_yaml_with_gates_open_only_for_a_random_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: dict[str, Any] = {}

    def export(trained: Path, out: Path, changes: Any) -> None:
        exported[out.name] = stages.params_tree({"export": changes})["export"]

    monkeypatch.setattr(sentences, "KEPT", tmp_path)
    monkeypatch.setattr(sentences, "weights", lambda: tmp_path)
    monkeypatch.setattr(sentences, "onnx_packages", lambda: tmp_path)
    monkeypatch.setattr(sentences, "_draw_vocabulary_head", lambda *_: None)
    monkeypatch.setattr(sentences, "_process_of_theirs", MagicMock())
    monkeypatch.setattr(sentences, "_export_ours", export)
    sentences.sentence_models()
    ours = stages.params_tree({})["export"]
    assert exported["embedding"] == ours
    asked = {name: limit for name, limit in exported["filling"]["gates"].items() if limit != ours["gates"][name]}
    assert asked == {"min_agreement": 0.0, "min_metric_ratio": 0.0}


def test_a_package_is_exported_again_when_the_gates_change(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sentences._what_exports()
    stricter = stages.params_tree({"export": {"gates": {"min_agreement": 0.99}}})
    monkeypatch.setattr(sentences, "params_tree", lambda changes: stricter)
    assert sentences._what_exports() != before


@pytest.mark.parametrize("changed", ["src/room/deep/file.py", "src/file.py", "requirements.lock"])
def test_a_package_is_exported_again_when_a_dep_of_the_export_stage_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: str
) -> None:
    deps = ["data/clean/validation.parquet", "models/${item}", "requirements.lock", "src/room", "src/file.py"]
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": {"export": {"do": {"deps": deps}}}}), encoding="utf-8")
    (tmp_path / "src" / "room" / "deep").mkdir(parents=True)
    for name in ("src/room/deep/file.py", "src/file.py", "requirements.lock"):
        (tmp_path / name).write_text("before", encoding="utf-8")
    monkeypatch.setattr(sentences, "PROJECT", tmp_path)
    before = sentences._what_exports()
    (tmp_path / changed).write_text("after", encoding="utf-8")
    assert sentences._what_exports() != before
    (tmp_path / "src" / "file.py").unlink()
    with pytest.raises(FileNotFoundError):
        sentences._what_exports()


def test_our_side_opens_the_precision_that_the_package_serves(
    package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    load = our_package.load
    monkeypatch.setattr(our_package, "load", lambda folder, **how: asked.append(how) or load(folder, **how))
    our_package.Ours(package(agreement=0.75, served="fp32"), 1)
    assert asked == [{}]
