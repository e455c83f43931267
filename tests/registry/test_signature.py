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


def sign_for_git(package: Path, key: Path) -> str:
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", "git"]
    done = subprocess.run(command, input=(package / "manifest.json").read_bytes(), capture_output=True, check=True)
    return done.stdout.decode()


def sign_another(package: Path, key: Path) -> str:
    signed, manifest = signature.sign(package, key), package / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"family"', ' "family"'))
    return signed


def test_a_signature_that_does_not_count_is_refused(package: Path, tmp_path: Path) -> None:
    keys = {name: make_key(tmp_path / name) for name in ("ada", "alan", "eve")}
    signers = allow(tmp_path / "signers", alan=keys["alan"], ada=keys["ada"])
    assert signature.check_signature(package, signature.sign(package, keys["ada"]), signers) == "ada"
    for make, signer, told in (
        (lambda package, key: "", "ada", "no signature"),
        (signature.sign, "eve", "a signature by somebody else"),
        (sign_for_git, "ada", "a signature by ada of something else"),
        (sign_another, "ada", "a signature by ada of something else"),
    ):
        signed = make(package, keys[signer])
        with pytest.raises(ArtifactError, match=f"has {told}, not one by one of those in") as raised:
            signature.check_signature(package, signed, signers)
        assert "clozeline sign" in raised.value.do


def test_what_is_missing_to_sign_or_to_check_is_named_before_any_work(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArtifactError, match="could not sign") as raised:  # without a prompt
        signature.sign(package, make_key(tmp_path / "ada", passphrase="secret"))
    assert "ssh-add" in raised.value.do
    with pytest.raises(ParamsError, match="cannot be read"):
        signature.require_allowed_signers(tmp_path / "signers")
    signers = allow(tmp_path / "signers", ada=tmp_path / "ada/key")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ParamsError, match="signatures need ssh-keygen"):
        signature.require_allowed_signers(signers)
    monkeypatch.setenv(signature.SIGNING_KEY, "/nowhere/key")
    with pytest.raises(ParamsError, match="CLOZELINE_SIGNING_KEY names no file"):
        signature.signing_key()
    monkeypatch.delenv(signature.SIGNING_KEY)
    assert signature.signing_key() is None
