"""Results of earlier runs, by a key of all that they depend on, in files that may be deleted at any time.

A file begins with a digest of its key and content: a damaged or renamed one counts as missing. Files are written beside
and renamed, so writers that are killed or work at once leave whole files only.
"""

import contextlib
import os
from collections.abc import Set
from hashlib import blake2b
from pathlib import Path

_DIGEST_BYTES = 16


class KeptResults:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: str) -> memoryview | None:
        """Return the result that was kept by `key`; None if there is none."""
        try:
            content = memoryview(self._path(key).read_bytes())
        except OSError:
            return None
        digest, result = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return result if digest == _digest(key, result) else None

    def write(self, key: str, result: bytes | memoryview) -> None:
        """Keep a result. Where that fails, for example on a full disk, it is computed again next time."""
        path = self._path(key)
        beside = path.with_name(f"{key}.{os.getpid()}.{os.urandom(4).hex()}.partial")
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with beside.open("xb") as file:
                    file.write(_digest(key, result))
                    file.write(result)
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)

    def keep_only(self, keys: Set[str]) -> None:
        """Remove every other result, and what killed writers left."""
        for path in self._folder.glob("*/*"):
            if path.name not in keys:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / key


def _digest(key: str, result: bytes | memoryview) -> bytes:
    digest = blake2b(key.encode(), digest_size=_DIGEST_BYTES)
    digest.update(result)
    return digest.digest()
