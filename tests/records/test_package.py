"""The text of an INT8 scheme uses the words of params.yaml, and different schemes have different texts."""

import json
from pathlib import Path

import pytest

from clozeline.records.package import FILES, read_manifest, record_of, verify
from clozeline.system.errors import ArtifactError
from tests.make import packages

SCHEME = packages.SCHEME.model_copy(
    update={"embeddings": "int8 per row, symmetric", "quantized_matmuls": 9, "quantized_embeddings": 1}
)


def test_different_schemes_have_different_descriptions() -> None:
    """They use the words of params.yaml."""
    assert str(SCHEME).startswith("weights int7 per column")
    for change, told in (
        ({"exact_matmuls": ("a", "b"), "quantized_matmuls": 7}, "2 of 9 weight products in fp32"),
        ({"embeddings": "float32"}, "embeddings float32"),
        ({"static_activations": ("h",), "static_ratio": 2.4}, "activations with a fixed scale (ratios up to 2.4)"),
        ({"reduce_range": False}, "weights int8 per column"),
    ):
        assert told in str(SCHEME.model_copy(update=change))
        assert told not in str(SCHEME)


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
