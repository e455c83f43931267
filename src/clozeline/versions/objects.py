"""Search for the bytes behind a hash of dvc.lock: in DVC's cache, in the workspace, and in git."""

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from clozeline.storage.fingerprints import md5_of
from clozeline.versions.project import open_project
from clozeline.versions.remote import check, has_remote
from clozeline.versions.stored_files import content_hash, is_folder, listed_files


class Objects:
    """The stored files of one DVC project."""

    def __init__(self, repo: Any) -> None:
        self._repo = repo
        self._root = Path(repo.root_dir)
        self._cache = Path(repo.cache.local.path)

    @classmethod
    @contextmanager
    def open(cls, root: Path) -> Iterator[Self]:
        """Open the project in `root`."""
        with open_project(root) as repo:
            yield cls(repo)

    def fault_of(self, path: str, md5: str, commit: str | None) -> str | None:
        """Return a description of what is missing or damaged in `path` at `md5`; None if every byte is available."""
        fault = self._fault_in_cache(md5)
        if fault is None or self.md5_of(self._root / path) == md5 or self._md5_in_git(path, commit) == md5:
            return None
        if has_remote(self._repo):
            self._fetch(md5)
            fault = self._fault_in_cache(md5)
        return fault

    def md5_of(self, path: Path) -> str | None:
        """Return DVC's hash of a file or folder; None if the path is missing."""
        from dvc.fs import localfs
        from dvc_data.hashfile.build import build

        if not path.exists():
            return None
        # .dvcignore covers all of `work/`, where registered packages lie, so it must not apply there.
        ignored = None if path.is_relative_to(self._root / "work") else self._repo.dvcignore
        _, _, built = build(self._repo.cache.local, str(path), localfs, "md5", dry_run=True, ignore=ignored)
        return str(built.hash_info.value)

    def files_of(self, md5: str) -> dict[str, Path] | None:
        """Return name → file in the cache of a folder with the hash `md5`; None if one of them is missing, or the hash
        is that of a file.
        """
        listing = self._cached(md5)
        if not is_folder(md5) or not listing.is_file():
            return None
        files = {name: self._cached(file) for name, file in listed_files(listing.read_bytes()).items()}
        return files if all(file.is_file() for file in files.values()) else None

    def _cached(self, md5: str) -> Path:
        return self._cache / md5[:2] / md5[2:]

    def _fetch(self, md5: str) -> None:
        """Fetch a file, or a folder with its files, from the remote, if it is there.

        Raises:
            ArtifactError, TransientError: the remote cannot be used.
        """
        from dvc.exceptions import DvcException
        from dvc_data.hashfile.hash_info import HashInfo

        check(self._repo)
        with suppress(DvcException, FileNotFoundError):
            self._repo.cloud.pull([HashInfo("md5", md5)])
            if is_folder(md5):  # DVC fetched only the list of its files
                files = listed_files(self._cached(md5).read_bytes()).values()
                self._repo.cloud.pull([HashInfo("md5", file) for file in files])

    def keep(self, path: Path) -> None:
        """Store a file in DVC's cache, so that it is found there when the workspace has another content."""
        from dvc.fs import localfs
        from dvc_data.hashfile.build import build
        from dvc_data.hashfile.transfer import transfer

        staging, _, built = build(self._repo.cache.local, str(path), localfs, "md5")
        transfer(staging, self._repo.cache.local, {built.hash_info}, shallow=False)

    def _fault_in_cache(self, md5: str) -> str | None:
        file = self._cached(md5)
        if not file.is_file():
            return f"{md5} is neither in the cache, nor in the workspace, nor in git"
        if md5_of(file) != content_hash(md5):
            return f"{file} is damaged: its content does not match its name"
        if not is_folder(md5):
            return None
        for name, inner in listed_files(file.read_bytes()).items():
            fault = self._fault_in_cache(inner)
            if fault:
                return f"{name}: {fault}"
        return None

    def _md5_in_git(self, path: str, commit: str | None) -> str | None:
        if commit is None:
            return None
        shown = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=self._root, capture_output=True, check=False)
        return hashlib.md5(shown.stdout, usedforsecurity=False).hexdigest() if shown.returncode == 0 else None
