"""Fingerprints of all that a result depends on."""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import clozeline


def fingerprint(facts: Mapping[str, object], files: Iterable[Path]) -> str:
    """Return a fingerprint of what decides a result: `facts` as JSON, and the contents of `files`."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for path in files:
        digest.update(path.name.encode())
        digest.update(bytes.fromhex(sha256_of(path)))
    return digest.hexdigest()[:16]


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def md5_of(path: Path) -> str:
    """Return the MD5 of a file, as DVC computes it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


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
