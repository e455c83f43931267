"""Signatures of packages by OpenSSH: any SSH key can sign, and no service is needed.

The signature is of the manifest, which holds the hash of every other file of the package.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from clozeline.records.package import FILES
from clozeline.system.errors import ArtifactError, ParamsError

# Environment variable: the key that releases sign with.
SIGNING_KEY = "CLOZELINE_SIGNING_KEY"
# Part of what is signed, so that no signature made for git or e-mail counts here.
_NAMESPACE = "clozeline"


def signature_file(folder: Path) -> Path:
    """Return the file with the signature of the package in `folder`. It lies beside the folder, which DVC tracks."""
    return folder.resolve().with_name(f"{folder.resolve().name}.sig")


def signing_key() -> Path | None:
    """Return the key that releases sign with; None: they do not sign.

    Raises:
        ParamsError: there is no such file.
    """
    given = os.environ.get(SIGNING_KEY)
    if not given:
        return None
    if not Path(given).is_file():
        raise ParamsError(
            f"{SIGNING_KEY} names no file: {given}",
            do=f"make a key (`ssh-keygen -t ed25519 -f {given}`), or unset {SIGNING_KEY} to release unsigned",
        )
    return Path(given)


def sign(folder: Path, key: Path) -> str:
    """Return a signature of the package in `folder` by the SSH key `key`.

    If `key` is a public key, ssh-agent signs with its private half.

    Raises:
        ArtifactError: ssh-keygen cannot sign with it.
    """
    done = _ssh_keygen("-Y", "sign", "-f", str(key), "-n", _NAMESPACE, message=_manifest(folder))
    if done.returncode:
        raise ArtifactError(
            f"ssh-keygen could not sign {folder} with the key {key}: {done.stderr.decode(errors='replace').strip()}",
            do="`ssh-add` the key and give its .pub file, or choose a key without a passphrase",
        )
    return done.stdout.decode()


def check_signature(folder: Path, signature: str, allowed_signers: Path) -> str:
    """Return who signed the package in `folder`, by the name in the file `allowed_signers` (see ssh-keygen(1)).

    Raises:
        ArtifactError: there is no signature, it is by nobody in the file, or it is of another package.
    """
    if not signature:
        raise _not_signed(folder, "no signature", allowed_signers)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "signature"
        file.write_text(signature, encoding="utf-8")
        by = ("-s", str(file), "-f", str(allowed_signers))
        who = _ssh_keygen("-Y", "find-principals", *by)
        if who.returncode:
            raise _not_signed(folder, "a signature by somebody else", allowed_signers)
        name = who.stdout.decode().split()[0]
        verified = _ssh_keygen("-Y", "verify", "-I", name, "-n", _NAMESPACE, *by, message=_manifest(folder))
    if verified.returncode:
        raise _not_signed(folder, f"a signature by {name} of something else", allowed_signers)
    return name


def require_allowed_signers(file: Path) -> Path:
    """Check that signatures can be verified with `file` on this machine, and return it.

    Raises:
        ParamsError: there is no such file, or this machine has no ssh-keygen.
    """
    if not file.is_file():
        raise ParamsError(
            f"the allowed signers cannot be read: there is no file {file}",
            do=f'write a line `NAME ssh-ed25519 …` for each person: echo "ada $(cat ~/.ssh/id_ed25519.pub)" >> {file}',
        )
    _ssh_keygen("-Y", "find-principals", "-f", str(file), "-s", os.devnull)
    return file


def _manifest(folder: Path) -> bytes:
    return (folder / FILES.manifest).read_bytes()


def _not_signed(folder: Path, given: str, allowed_signers: Path) -> ArtifactError:
    return ArtifactError(
        f"{folder} has {given}, not one by one of those in {allowed_signers}",
        do="`clozeline sign MODEL --key FILE` by one of them, or serve without --require-signature",
    )


def _ssh_keygen(*arguments: str, message: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        environment = {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}
        command = ["ssh-keygen", *arguments]
        return subprocess.run(command, input=message, env=environment, capture_output=True, check=False)
    except FileNotFoundError as error:
        problem = "signatures need ssh-keygen of OpenSSH 8.9 or newer, which this machine lacks"
        raise ParamsError(problem, do="install it: Debian's package is called openssh-client") from error
