"""A package is accepted only with exactly the files that were written."""

import json
import shutil
from pathlib import Path

import pytest

from clozeline.records.package import FILES, read_manifest, record_of, verify
from clozeline.system.errors import ArtifactError


@pytest.fixture
def package(encoder_package: Path, tmp_path: Path) -> Path:
    """Copy of a package that a test may damage."""
    return Path(shutil.copytree(encoder_package, tmp_path / "package"))


def refusal(package: Path) -> str:
    with pytest.raises(ArtifactError) as refused:
        verify(package, read_manifest(package))
    return str(refused.value)


def test_an_untouched_package_is_accepted(package: Path) -> None:
    verify(package, read_manifest(package))


@pytest.mark.parametrize("name", [FILES.fp32, FILES.int8, FILES.tokenizer])
def test_one_changed_bit_of_any_file_is_refused_with_both_hashes(package: Path, name: str) -> None:
    content = bytearray((package / name).read_bytes())
    content[len(content) // 2] ^= 1
    (package / name).write_bytes(content)
    message = refusal(package)
    assert str(package / name) in message
    assert record_of(package / name).sha256 in message
    assert read_manifest(package).files[name].sha256 in message


def test_a_missing_file_is_named(package: Path) -> None:
    (package / FILES.int8).unlink()
    told = refusal(package)
    assert "no such file" in told
    assert "`dvc repro export@NAME`" in told, "`dvc checkout` would not overwrite a changed file"


def test_only_the_named_files_are_verified(package: Path) -> None:
    (package / FILES.fp32).unlink()
    verify(package, read_manifest(package), names=[FILES.int8])


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        read_manifest(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("key", "value"), [("format_version", 3), ("served", "int4"), ("lock_sha256", "abc"), ("surprise", 1)]
)
def test_a_manifest_with_an_invalid_key_is_refused_with_the_key(package: Path, key: str, value: object) -> None:
    manifest = json.loads((package / FILES.manifest).read_text(encoding="utf-8")) | {key: value}
    (package / FILES.manifest).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(ArtifactError, match=key):
        read_manifest(package)


def test_a_manifest_that_is_not_json_is_refused(package: Path) -> None:
    (package / FILES.manifest).write_bytes(b"\xff{")
    with pytest.raises(ArtifactError, match="cannot be used"):
        read_manifest(package)
