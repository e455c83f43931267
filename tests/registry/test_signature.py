"""A package is signed with an SSH key; only the signatures of allowed signers count."""

import subprocess
from pathlib import Path

import pytest

from clozeline.registry import signature
from clozeline.system.errors import ArtifactError, ParamsError
from tests.make.packages import write_encoder


@pytest.fixture
def package(tmp_path: Path) -> Path:
    write_encoder(tmp_path / "encoder")
    return tmp_path / "encoder"


def make_key(folder: Path, passphrase: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(folder / "key")]
    subprocess.run(make, check=True)
    return folder / "key"


def allow(file: Path, **keys: Path) -> Path:
    file.write_text("".join(f"{name} {key.with_suffix('.pub').read_text()}" for name, key in keys.items()))
    return file


def test_a_signature_names_its_signer(package: Path, tmp_path: Path) -> None:
    ada, alan = make_key(tmp_path / "ada"), make_key(tmp_path / "alan")
    signers = allow(tmp_path / "signers", ada=ada, alan=alan)
    assert signature.check_signature(package, signature.sign(package, alan), signers) == "alan"


def test_an_unsigned_package_is_refused(package: Path, tmp_path: Path) -> None:
    signers = allow(tmp_path / "signers", ada=make_key(tmp_path / "ada"))
    with pytest.raises(ArtifactError, match="no signature that counts") as raised:
        signature.check_signature(package, "", signers)
    assert raised.value.given == "no signature"
    assert "clozeline sign" in raised.value.do


def test_a_signature_by_an_unknown_signer_is_refused(package: Path, tmp_path: Path) -> None:
    signers = allow(tmp_path / "signers", ada=make_key(tmp_path / "ada"))
    with pytest.raises(ArtifactError) as raised:
        signature.check_signature(package, signature.sign(package, make_key(tmp_path / "eve")), signers)
    assert raised.value.given == "a signature by somebody else"


def test_a_signature_of_another_package_is_refused(package: Path, tmp_path: Path) -> None:
    ada = make_key(tmp_path / "ada")
    signed = signature.sign(package, ada)
    manifest = package / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"family"', ' "family"'))
    with pytest.raises(ArtifactError) as raised:
        signature.check_signature(package, signed, allow(tmp_path / "signers", ada=ada))
    assert raised.value.given == "a signature by ada of something else"


def test_a_signature_made_for_git_is_refused(package: Path, tmp_path: Path) -> None:
    ada = make_key(tmp_path / "ada")
    command = ["ssh-keygen", "-Y", "sign", "-f", str(ada), "-n", "git"]
    for_git = subprocess.run(command, input=(package / "manifest.json").read_bytes(), capture_output=True, check=True)
    with pytest.raises(ArtifactError, match="no signature that counts"):
        signature.check_signature(package, for_git.stdout.decode(), allow(tmp_path / "signers", ada=ada))


def test_a_key_with_a_passphrase_is_refused_without_a_prompt(package: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="could not sign") as raised:
        signature.sign(package, make_key(tmp_path / "ada", passphrase="secret"))
    assert "ssh-add" in raised.value.do


def test_a_missing_signing_key_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(signature.SIGNING_KEY, "/nowhere/key")
    with pytest.raises(ParamsError, match="CLOZELINE_SIGNING_KEY names no file"):
        signature.signing_key()
    monkeypatch.delenv(signature.SIGNING_KEY)
    assert signature.signing_key() is None


def test_the_error_without_openssh_names_the_package_to_install(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signers = allow(tmp_path / "signers", ada=make_key(tmp_path / "ada"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ParamsError, match="signatures need ssh-keygen"):
        signature.require_allowed_signers(signers)


def test_a_missing_file_of_signers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match="cannot be read"):
        signature.require_allowed_signers(tmp_path / "signers")
