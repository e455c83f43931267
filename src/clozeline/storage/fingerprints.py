"""Fingerprints of all that a result depends on."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import clozeline


def fingerprint(facts: Mapping[str, object], files: Iterable[Path]) -> str:
    """Return a fingerprint of what decides a result: `facts` as JSON, and the contents of `files`."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for path in files:
        with path.open("rb") as file:
            digest.update(path.name.encode())
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def code_of(places: Iterable[str]) -> list[Path]:
    """Return the package's Python files at the paths `places`, files or folders in it."""
    package = Path(clozeline.__file__).parent
    return [
        file
        for place in places
        for file in ([package / place] if place.endswith(".py") else sorted((package / place).rglob("*.py")))
    ]
