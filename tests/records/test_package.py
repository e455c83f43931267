"""A package with a changed or missing file, or with an invalid manifest, is refused."""

import json
from pathlib import Path

import pytest

from clozeline.records.package import FILES, read_manifest, record_of, verify
from clozeline.records.package_metrics import MetricPaths
from clozeline.system.errors import ArtifactError
from tests.make import packages


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package that a test may damage."""
    packages.write_encoder(tmp_path / "package")
    return tmp_path / "package"


def refusal(package: Path) -> str:
    with pytest.raises(ArtifactError) as refused:
        verify(package, read_manifest(package))
    return str(refused.value)


@pytest.mark.parametrize("name", [FILES.fp32, FILES.int8, FILES.tokenizer])
def test_one_changed_bit_of_any_file_or_a_missing_one_is_refused(package: Path, name: str) -> None:
    verify(package, read_manifest(package))
    content = bytearray((package / name).read_bytes())
    content[len(content) // 2] ^= 1
    (package / name).write_bytes(content)
    message = refusal(package)
    assert str(package / name) in message
    assert record_of(package / name).sha256 in message
    assert read_manifest(package).files[name].sha256 in message
    (package / name).unlink()
    told = refusal(package)
    assert name in told
    assert "`dvc repro export@NAME`" in told, "`dvc checkout` would not overwrite a changed file"
    others = {FILES.fp32, FILES.int8, FILES.tokenizer} - {name}
    verify(package, read_manifest(package), names=[*others])


@pytest.mark.parametrize(
    ("key", "value"), [("format_version", 3), ("served", "int4"), ("lock_sha256", "abc"), ("surprise", 1)]
)
def test_a_manifest_with_an_invalid_key_is_refused_with_the_key(package: Path, key: str, value: object) -> None:
    manifest = json.loads((package / FILES.manifest).read_text(encoding="utf-8")) | {key: value}
    (package / FILES.manifest).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(ArtifactError, match=key):
        read_manifest(package)
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        read_manifest(package / "nowhere")


def test_each_model_has_the_metric_file_of_its_stage() -> None:
    of_generator = MetricPaths.of("some", "encoder/generator")  # objective rtd: `evaluate` measures the generator
    assert (of_generator.quality, of_generator.export) == (Path("evaluate.json"), Path("export/some.json"))
    assert MetricPaths.of("some", "finetuned/library").quality == Path("finetune/library.json")
    assert MetricPaths.of("some", None).quality is None
