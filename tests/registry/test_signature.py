"""A package is signed with an SSH key; only the signatures of allowed signers count."""

import subprocess
from collections.abc import Callable
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


def sign_for_git(package: Path, key: Path) -> str:
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", "git"]
    done = subprocess.run(command, input=(package / "manifest.json").read_bytes(), capture_output=True, check=True)
    return done.stdout.decode()


def sign_another(package: Path, key: Path) -> str:
    signed, manifest = signature.sign(package, key), package / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"family"', ' "family"'))
    return signed


@pytest.mark.parametrize(
    ("make", "signer", "told"),
    [
        (lambda package, key: "", "ada", "no signature"),
        (signature.sign, "eve", "a signature by somebody else"),
        (sign_another, "ada", "a signature by ada of something else"),
        (sign_for_git, "ada", "a signature by ada of something else"),
    ],
    ids=["unsigned", "unknown signer", "another package", "for git"],
)
def test_a_signature_that_does_not_count_is_refused(
    package: Path, tmp_path: Path, make: Callable[[Path, Path], str], signer: str, told: str
) -> None:
    keys = {name: make_key(tmp_path / name) for name in ("ada", "eve")}
    with pytest.raises(ArtifactError, match=f"has {told}, not one by one of those in") as raised:
        signature.check_signature(package, make(package, keys[signer]), allow(tmp_path / "signers", ada=keys["ada"]))
    assert "clozeline sign" in raised.value.do


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
