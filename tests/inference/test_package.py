"""Opening a package chooses what answers, refuses damaged packages, and needs only the serving install."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from clozeline.cli.ask import opened
from clozeline.inference.classifier import Classifier
from clozeline.inference.language import OpenEncoder
from clozeline.inference.package import load
from clozeline.records.package import FILES, record_of
from clozeline.registry.models import PACKAGE
from clozeline.registry.served_model import PyfuncModel
from clozeline.registry.sources import ModelSource
from clozeline.serving.loading import open_source
from clozeline.system.errors import ArtifactError
from tests.make.packages import write_encoder


def test_the_task_in_the_manifest_decides_the_model_class(encoder_package: Path, classifier_package: Path) -> None:
    assert isinstance(load(encoder_package), OpenEncoder)
    assert isinstance(load(classifier_package), Classifier)


def test_int8_and_fp32_are_different_graphs(encoder_package: Path) -> None:
    int8, fp32 = load(encoder_package), load(encoder_package, precision="fp32")
    assert isinstance(int8, OpenEncoder)
    assert isinstance(fp32, OpenEncoder)
    assert (int8.embed(["the model"]) != fp32.embed(["the model"])).any()


@pytest.mark.parametrize("name", [FILES.int8, FILES.tokenizer])
def test_a_damaged_package_is_refused(encoder_package: Path, tmp_path: Path, name: str) -> None:
    package = Path(shutil.copytree(encoder_package, tmp_path / "package"))
    with (package / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
        load(package)


def test_a_package_opens_with_only_the_serving_install(encoder_package: Path) -> None:
    heavy = (
        "{'torch', 'transformers', 'optimum', 'onnx', 'pyarrow', 'pandas', 'sklearn', 'scipy', 'clozeline.exporting'}"
    )
    code = (
        "import sys; from pathlib import Path; from clozeline.inference import latency; "
        f"latency.load(Path({str(encoder_package)!r})).fill(['the [MASK]']); print(sorted({heavy} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


NESTED = '{"a":' * 100_000 + "1" + "}" * 100_000


def rewrite_manifest(package: Path, **facts: Any) -> None:
    """Write the manifest again, with `facts` and with the current hashes of the files."""
    manifest = json.loads((package / FILES.manifest).read_text(encoding="utf-8"))
    hashes = {name: record_of(package / name).model_dump() for name in manifest["files"]}
    told = manifest | {"files": hashes} | facts
    (package / FILES.manifest).write_text(json.dumps(told), encoding="utf-8")


def rewritten(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(package: Path) -> None:
        (package / name).write_bytes(content)
        rewrite_manifest(package)

    return damage


def declared(**facts: Any) -> Callable[[Path], None]:
    return lambda package: rewrite_manifest(package, **facts)


def keep_weights_at(location: str) -> Callable[[Path], None]:
    """Move the embeddings to a file outside the package, and let the graph look for them at `location`."""

    def damage(package: Path) -> None:
        outside = package.parent / "weights.bin"
        graph = onnx.load(package / FILES.int8)
        table = next(tensor for tensor in graph.graph.initializer if tensor.name == "embeddings")
        outside.write_bytes(table.raw_data)
        (package / "link.bin").symlink_to(outside)
        table.ClearField("raw_data")
        table.data_location = onnx.TensorProto.EXTERNAL
        table.external_data.add(key="location", value=location.format(outside=outside))
        (package / FILES.int8).write_bytes(graph.SerializeToString())
        rewrite_manifest(package)

    return damage


def link_outside(name: str) -> Callable[[Path], None]:
    def damage(package: Path) -> None:
        (package / name).rename(package.parent / name)
        (package / name).symlink_to(package.parent / name)

    return damage


def list_outside(name: str) -> Callable[[Path], None]:
    def damage(package: Path) -> None:
        outside = package.parent / "outside.bin"
        outside.write_bytes(b"1")
        files = json.loads((package / FILES.manifest).read_text(encoding="utf-8"))["files"]
        rewrite_manifest(package, files=files | {name.format(outside=outside): record_of(outside).model_dump()})

    return damage


def give_another_tokenizer(package: Path) -> None:
    rules = json.loads((package / FILES.tokenizer).read_text(encoding="utf-8"))
    rules["model"]["vocab"]["foreign"] = 100_000
    rewritten(FILES.tokenizer, json.dumps(rules).encode())(package)


def call_the_mask_otherwise(package: Path) -> None:
    rules = (package / FILES.tokenizer).read_text(encoding="utf-8").replace("[MASK]", "<mask>")
    rewritten(FILES.tokenizer, rules.encode())(package)


def rename_an_output(package: Path) -> None:
    manifest = json.loads((package / FILES.manifest).read_text(encoding="utf-8"))
    manifest["outputs"][0]["name"] = "scores"
    rewrite_manifest(package, outputs=manifest["outputs"])


def leave_the_tokenizer_out(package: Path) -> None:
    files = json.loads((package / FILES.manifest).read_text(encoding="utf-8"))["files"]
    rewrite_manifest(package, files={name: record for name, record in files.items() if name != FILES.tokenizer})


DAMAGE = {
    "garbage graph": (rewritten(FILES.int8, b"no protobuf" * 9), FILES.int8),
    "empty graph": (rewritten(FILES.int8, b""), FILES.int8),
    "weights in the folder above": (keep_weights_at("../weights.bin"), FILES.int8),
    "weights at an absolute path": (keep_weights_at("{outside}"), FILES.int8),
    "weights behind a link": (keep_weights_at("link.bin"), FILES.int8),
    "nested tokenizer": (rewritten(FILES.tokenizer, NESTED.encode()), FILES.tokenizer),
    "no tokenizer": (rewritten(FILES.tokenizer, b'{"x": 1}'), FILES.tokenizer),
    "tokenizer of a larger vocabulary": (give_another_tokenizer, "100,000"),
    "tokenizer of another mask": (call_the_mask_otherwise, "<mask>"),
    "max_length -5": (declared(max_length=-5), "max_length: '-5'"),
    "max_length 1e18": (declared(max_length=1e18), "max_length: '1e\\+18'"),
    "max_length without room for text": (declared(max_length=2), "max_length"),
    "max_length above the positions": (declared(max_length=129, num_positions=128), "at most 128"),
    "another output": (rename_an_output, "scores"),
    "file in the folder above": (list_outside("../outside.bin"), "'../outside.bin'"),
    "file at an absolute path": (list_outside("{outside}"), "outside.bin"),
    "unlisted tokenizer": (leave_the_tokenizer_out, f"does not list {FILES.tokenizer}"),
    "linked graph": (link_outside(FILES.int8), f"{FILES.int8} leads out of the package"),
    "linked tokenizer": (link_outside(FILES.tokenizer), f"{FILES.tokenizer} leads out of the package"),
    "linked manifest": (link_outside(FILES.manifest), f"{FILES.manifest} leads out of the package"),
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    write_encoder(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_package_is_refused_by_name(package: Path, damage: str) -> None:
    make, named = DAMAGE[damage]
    make(package)
    with pytest.raises(ArtifactError, match=named) as refused:
        load(package)
    assert "again" in refused.value.do or "copy" in refused.value.do


def by_pyfunc(package: Path) -> None:
    PyfuncModel().load_context(SimpleNamespace(artifacts={PACKAGE: str(package)}))


DOORS = {
    "serve and hot swap": lambda package: open_source(ModelSource("encoder", str(package)), None),
    "serve --precision": lambda package: open_source(ModelSource("encoder", str(package)), "int8"),
    "fill": lambda package: opened(str(package), None, OpenEncoder),
    "pyfunc": by_pyfunc,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("damage", ["garbage graph", "weights in the folder above", "nested tokenizer"])
def test_a_damaged_package_is_refused_wherever_it_is_opened(package: Path, door: str, damage: str) -> None:
    make, named = DAMAGE[damage]
    make(package)
    with pytest.raises(ArtifactError, match=named):
        DOORS[door](package)
