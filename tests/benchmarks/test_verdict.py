"""Claim: the serving benchmarks time the graph that `make run` would serve, or their line says that they do not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import serving
from clozeline.records.package import FILES, read_manifest
from comparison import sentences, stages
from tests.make.packages import rung_of, write_embedder

Made = Callable[..., Path]


@pytest.fixture
def package(tmp_path: Path) -> Made:
    def made(agreement: float, served: str = "int8") -> Path:
        folder = tmp_path / "package"
        write_embedder(folder)
        manifest = read_manifest(folder)
        assert manifest.quantization is not None
        first, last = (manifest.quantization.model_copy(update={"quantized_matmuls": number}) for number in (5, 6))
        ladder = (rung_of(first, 0.5), rung_of(last, agreement))
        quantization = last if served == "int8" else None
        changed = manifest.model_copy(update={"served": served, "ladder": ladder, "quantization": quantization})
        (folder / FILES.manifest).write_text(changed.model_dump_json(), encoding="utf-8")
        return folder

    return made


@pytest.mark.parametrize(
    ("agreement", "served", "warning"),
    [
        (0.99, "int8", ""),
        (0.75, "int8", "INT8 IS TIMED THAT WOULD NOT BE SERVED"),
        (0.75, "fp32", "FP32 IS TIMED, NO INT8 SCHEME PASSED"),
    ],
)
def test_the_line_tells_the_timed_scheme_and_how_it_passes_the_gates_of_params_yaml(
    package: Made, caplog: pytest.LogCaptureFixture, agreement: float, served: str, warning: str
) -> None:
    line = serving.verdict(package(agreement, served))
    assert (line["ours_precision"], line["ours_int8_passes"]) == (served, not warning)
    scheme = line["ours_scheme"] or {"quantized_matmuls": 6, "static_activations": 0}
    assert (scheme["quantized_matmuls"], scheme["static_activations"]) == (6, 0)
    assert (line["ours_scheme"] is None) == (served == "fp32")
    told = f"agreement is {agreement:.4f}, at least 0.97: {'NO' if warning else 'yes'}"
    assert told in line["ours_int8_checks"]
    assert (warning in caplog.text, told in caplog.text) == (True, bool(warning))
    assert bool(caplog.records) == bool(warning)


def test_the_encoder_is_exported_by_params_yaml_with_gates_open_only_for_a_random_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: dict[str, Any] = {}

    def export(trained: Path, out: Path, changes: Any) -> None:
        exported[out.name] = stages.params_tree({"export": changes})["export"]

    monkeypatch.setattr(sentences, "KEPT", tmp_path)
    for name in ("weights", "onnx_packages"):
        monkeypatch.setattr(sentences, name, lambda: tmp_path)
    for name in ("_draw_vocabulary_head", "_process_of_theirs"):
        monkeypatch.setattr(sentences, name, MagicMock())
    monkeypatch.setattr(sentences, "_export_ours", export)
    sentences.sentence_models()
    ours = stages.params_tree({})["export"]
    assert exported["embedding"] == ours
    asked = {name: limit for name, limit in exported["filling"]["gates"].items() if limit != ours["gates"][name]}
    assert asked == {"min_agreement": 0.0, "min_metric_ratio": 0.0}


def test_a_package_is_exported_again_when_a_gate_or_a_dep_of_the_export_stage_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deps = ["data/clean/validation.parquet", "models/${item}", "requirements.lock", "src/room", "src/file.py"]
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": {"export": {"do": {"deps": deps}}}}), encoding="utf-8")
    (tmp_path / "src" / "room" / "deep").mkdir(parents=True)
    files = [tmp_path / name for name in ("src/room/deep/file.py", "src/file.py", "requirements.lock")]
    for file in files:
        file.write_text("before", encoding="utf-8")
    monkeypatch.setattr(sentences, "PROJECT", tmp_path)
    found = [sentences._what_exports()]
    for file in files:
        file.write_text("after", encoding="utf-8")
        found.append(sentences._what_exports())
    stricter = stages.params_tree({"export": {"gates": {"min_agreement": 0.99}}})
    monkeypatch.setattr(sentences, "params_tree", lambda changes: stricter)
    found.append(sentences._what_exports())
    assert len(set(found)) == 5
    files[1].unlink()
    with pytest.raises(FileNotFoundError):
        sentences._what_exports()


def test_our_side_opens_the_precision_that_the_package_serves(package: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    load = serving.load
    monkeypatch.setattr(serving, "load", lambda folder, **how: asked.append(how) or load(folder, **how))
    serving.Ours(package(agreement=0.75, served="fp32"), 1)
    assert asked == [{}]
