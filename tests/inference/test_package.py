"""Opening a package chooses what answers, refuses damaged packages, and needs only the serving install."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from clozeline.inference.classifier import Classifier
from clozeline.inference.language import OpenEncoder
from clozeline.inference.package import load
from clozeline.records.package import FILES, record_of
from clozeline.system.errors import ArtifactError
from tests.make.opened import load_as
from tests.make.packages import write_encoder

Manifest = dict[str, Any]
Damage = Callable[[Path, Manifest], object]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    write_encoder(tmp_path / "encoder")
    return tmp_path / "encoder"


def test_the_task_in_the_manifest_decides_the_model_class_and_precisions_are_different_graphs(
    encoder_package: Path, classifier_package: Path
) -> None:
    assert isinstance(load(classifier_package), Classifier)
    int8, fp32 = (load_as(OpenEncoder, encoder_package, precision=precision) for precision in ("int8", "fp32"))
    assert (int8.embed(["the model"]) != fp32.embed(["the model"])).any()


def test_a_package_opens_with_only_the_serving_install(package: Path) -> None:
    heavy = {"torch", "transformers", "optimum", "onnx", "pyarrow", "pandas", "sklearn", "scipy", "clozeline.exporting"}
    code = (
        "import sys; from pathlib import Path; from clozeline.inference import latency; "
        f"latency.load(Path({str(package)!r})).fill(['the [MASK]']); print(sorted({heavy} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def rewrite(name: str, content: bytes) -> Damage:
    return lambda package, manifest: (package / name).write_bytes(content)


def replace(name: str, old: str, new: str) -> Damage:
    def damage(package: Path, manifest: Manifest) -> None:
        text = (package / name).read_text(encoding="utf-8")
        assert old in text
        (package / name).write_text(text.replace(old, new), encoding="utf-8")

    return damage


def declare(**facts: Any) -> Damage:
    return lambda package, manifest: manifest.update(facts)


def keep_weights_at(location: str) -> Damage:
    """Move the embeddings to a file outside the package, and let the graph look for them at `location`."""

    def damage(package: Path, manifest: Manifest) -> None:
        outside = package.parent / "weights.bin"
        graph = onnx.load(package / FILES.int8)
        table = next(tensor for tensor in graph.graph.initializer if tensor.name == "embeddings")
        outside.write_bytes(table.raw_data)
        (package / "link.bin").symlink_to(outside)
        table.ClearField("raw_data")
        table.data_location = onnx.TensorProto.EXTERNAL
        table.external_data.add(key="location", value=location.format(outside=outside))
        (package / FILES.int8).write_bytes(graph.SerializeToString())

    return damage


def link_outside(name: str) -> Damage:
    def damage(package: Path, manifest: Manifest) -> None:
        (package / name).rename(package.parent / name)
        (package / name).symlink_to(package.parent / name)

    return damage


def list_outside(name: str) -> Damage:
    def damage(package: Path, manifest: Manifest) -> None:
        outside = package.parent / "outside.bin"
        outside.write_bytes(b"1")
        manifest["files"][name.format(outside=outside)] = {}

    return damage


NESTED = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
FOREIGN = ('"vocab": {', '"vocab": {"foreign": 100000,')
DAMAGE: dict[str, tuple[Damage, str]] = {
    "garbage graph": (rewrite(FILES.int8, b"no protobuf" * 9), FILES.int8),
    "weights in the folder above": (keep_weights_at("../weights.bin"), FILES.int8),
    "weights at an absolute path": (keep_weights_at("{outside}"), FILES.int8),
    "weights behind a link": (keep_weights_at("link.bin"), FILES.int8),
    "nested tokenizer": (rewrite(FILES.tokenizer, NESTED), FILES.tokenizer),
    "no tokenizer": (rewrite(FILES.tokenizer, b'{"x": 1}'), FILES.tokenizer),
    "tokenizer of a larger vocabulary": (replace(FILES.tokenizer, *FOREIGN), "100,000"),
    "tokenizer of another mask": (replace(FILES.tokenizer, "[MASK]", "<mask>"), "<mask>"),
    "max_length -5": (declare(max_length=-5), "max_length: '-5'"),
    "max_length without room for text": (declare(max_length=2), "max_length"),
    "max_length above the positions": (declare(max_length=129, num_positions=128), "at most 128"),
    "another output": (lambda package, manifest: manifest["outputs"][0].update(name="scores"), "scores"),
    "another input": (lambda package, manifest: manifest["inputs"][1].update(name="padding"), "padding"),
    "file in the folder above": (list_outside("../outside.bin"), r"'\.\./outside\.bin'"),
    "file at an absolute path": (list_outside("{outside}"), r"outside\.bin"),
    "unlisted tokenizer": (
        lambda package, manifest: manifest["files"].pop(FILES.tokenizer),
        f"does not list {FILES.tokenizer}",
    ),
    "linked graph": (link_outside(FILES.int8), f"{FILES.int8} leads out of the package"),
    "linked tokenizer": (link_outside(FILES.tokenizer), f"{FILES.tokenizer} leads out of the package"),
}


def make_damage(package: Path, damage: str) -> str:
    """Damage a package, and write its manifest again with the hashes of now; return what a refusal names."""
    make, named = DAMAGE[damage]
    manifest = json.loads((package / FILES.manifest).read_text(encoding="utf-8"))
    make(package, manifest)
    manifest["files"] = {name: record_of(package / name).model_dump() for name in manifest["files"]}
    (package / FILES.manifest).write_text(json.dumps(manifest), encoding="utf-8")
    return named


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_package_is_refused_by_name(package: Path, damage: str) -> None:
    with pytest.raises(ArtifactError, match=make_damage(package, damage)) as refused:
        load(package)
    assert "again" in refused.value.do or "copy" in refused.value.do


@pytest.mark.parametrize("name", [FILES.int8, FILES.tokenizer, FILES.manifest])
def test_a_file_that_was_changed_or_a_manifest_elsewhere_is_refused_by_name(package: Path, name: str) -> None:
    if name == FILES.manifest:
        link_outside(name)(package, {})
    else:
        (package / name).write_bytes((package / name).read_bytes() + b" ")
    with pytest.raises(ArtifactError, match=name):
        load(package)
