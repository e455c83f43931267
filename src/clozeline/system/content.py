"""Fingerprints of all that a result depends on."""

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import clozeline
from clozeline.system.errors import ArtifactError


def fingerprint(facts: Mapping[str, object], files: Iterable[Path]) -> str:
    """Return a fingerprint of what decides a result: `facts` as JSON, and the contents of `files`."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for path in files:
        digest.update(path.name.encode())
        digest.update(bytes.fromhex(sha256_of(path)))
    return digest.hexdigest()[:16]


def sha256_of(content: Path | bytes) -> str:
    """Return the sha256 of a file or of bytes, in hexadecimal digits."""
    return _digest_of(content, hashlib.sha256)


def md5_of(content: Path | bytes) -> str:
    """Return the MD5 of a file or of bytes, as DVC computes it."""
    return _digest_of(content, partial(hashlib.md5, usedforsecurity=False))


def sha256_of_files(folder: Path) -> str:
    """Return one sha256 over the paths and contents of all files in a folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    listed = "".join(f"{sha256_of(file)}  {file.relative_to(folder).as_posix()}\n" for file in files)
    return sha256_of(listed.encode())


def expect(file: Path, sha256: str, *, do: str) -> None:
    """Check the content of a file.

    Raises:
        ArtifactError: it has another sha256, or is missing.
    """
    given = sha256_of(file) if file.is_file() else "no such file"
    if given != sha256:
        raise ArtifactError(f"{file} is another file: sha256 {given}, not {sha256}", do=do)


def _digest_of(content: Path | bytes, algorithm: Callable[..., Any]) -> str:
    if isinstance(content, bytes):
        return str(algorithm(content).hexdigest())
    with content.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of these packages."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}


def code_of(places: Iterable[str]) -> list[Path]:
    """Return the package's Python files at the paths `places`, files or folders in it."""
    package = Path(clozeline.__file__).parent
    return [
        file
        for place in places
        for file in ([package / place] if place.endswith(".py") else sorted((package / place).rglob("*.py")))
    ]
