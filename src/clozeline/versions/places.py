"""The objects and the run cache in one place that DVC stores them in: its cache, or the remote."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from dvc.repo import Repo
from dvc_data.hashfile.db import get_index
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from clozeline.artifacts.lock import LockedStage
from clozeline.errors import ArtifactError
from clozeline.storage.beside import held_beside
from clozeline.storage.sweep import Removal, Store
from clozeline.versions.remote import check, has_remote, remote_errors
from clozeline.versions.stored_files import StoredFile, content_hash, is_folder, listed_files, stored_files

_PER_CALL: Final = 500
"""Files that are removed from a remote at once."""


@dataclass(frozen=True)
class Place:
    """A cache or remote: its objects, and the run cache, whose records lead to objects."""

    name: str
    database: Any
    legacy: Any
    """Object database of DVC 2, in whose folder DVC 3 keeps the run cache."""
    local_runs: Path
    """Run cache of the project, which has copies of most records of a remote."""
    remote_of: Repo | None = None
    _files: dict[str, StoredFile] = field(default_factory=dict)
    """Each file that was listed, by its path."""

    @cached_property
    def objects(self) -> Mapping[str, str]:
        """Hash → path of each object."""
        found = {}
        for path in self._listed(self.database.path):
            with suppress(ValueError):  # a temporary file of DVC
                found[str(self.database.path_to_oid(path))] = path
        return found

    @cached_property
    def records(self) -> Mapping[str, LockedStage | None]:
        """Path → content, for each record of the run cache; None if it is damaged."""
        return {path: self._record(path) for path in self._listed(self.legacy.fs.join(self.legacy.path, "runs"))}

    @cached_property
    def runs(self) -> Mapping[str, frozenset[str]]:
        """Path → hashes of the outputs, for each record of the run cache; a damaged record has an output without a
        name, so that it is removed."""
        return {
            path: frozenset(out.md5 for out in run.outs if out.md5) if run else frozenset({""})
            for path, run in self.records.items()
        }

    def read(self, path: str) -> bytes:
        with self.database.fs.open(path, "rb") as file:
            content: bytes = file.read()
        return content

    def young(self, before: datetime) -> set[str]:
        """Return the objects, and the outputs of the runs, that were written since `before`."""
        objects = {oid for oid, path in self.objects.items() if not self._files[path].is_older_than(before)}
        return objects.union(*(outs for path, outs in self.runs.items() if not self._files[path].is_older_than(before)))

    def stores(self, kept: set[str], before: datetime) -> tuple[Store, Store]:
        """Return the run cache and the objects without what is in `kept` or was written since `before`."""
        old_runs = [
            path for path, outs in self.runs.items() if self._files[path].is_older_than(before) and not outs <= kept
        ]
        return self.without(self.objects.keys() - kept, old_runs)

    def without(self, objects: Collection[str], runs: Collection[str]) -> tuple[Store, Store]:
        """Return the run cache without the records at `runs`, and the objects without those of the hashes `objects`.

        Runs are removed before objects, so that no run names a missing object. The list of a folder is removed before
        the files in it, because DVC takes the list as proof of the files.
        """
        gone = [path for oid, path in self.objects.items() if oid in objects]
        lists = [path for path in gone if is_folder(path)]
        files = [path for path in gone if not is_folder(path)]
        remove, remove_run = (self._remove_remote,) * 2 if self.remote_of else (self._remove, self._remove_run)
        removals = (*self._removals(lists, remove), *self._removals(files, remove))
        return (
            Store(f"{self.name}: runs", len(self.runs) - len(runs), self._removals(runs, remove_run)),
            Store(f"{self.name}: objects", len(self.objects) - len(gone), removals),
        )

    def _listed(self, folder: str) -> list[str]:
        found = {file.path: file for file in stored_files(self.database, folder)}
        self._files.update(found)
        return list(found)

    def _record(self, run: str) -> LockedStage | None:
        copy = self.local_runs.joinpath(*Path(run).parts[-3:])  # named by the hash of its content
        for read in (copy.read_bytes, partial(self.read, run)):
            with suppress(FileNotFoundError, ValueError, YAMLError):
                return LockedStage.model_validate(YAML(typ="safe").load(read()))
        return None

    def _removals(self, paths: Iterable[str], remove: Callable[[Sequence[str]], None]) -> tuple[Removal, ...]:
        ordered, size = sorted(paths), _PER_CALL if self.remote_of else 1
        chunks = [ordered[start : start + size] for start in range(0, len(ordered), size)]
        return tuple(
            Removal(sum(self._files[path].num_bytes for path in chunk), partial(remove, chunk), len(chunk))
            for chunk in chunks
        )

    def _remove(self, paths: Sequence[str]) -> None:
        self.database.fs.remove(list(paths))

    def _remove_run(self, paths: Sequence[str]) -> None:
        """Remove a record; the last one of its folder with the folder, because DVC fails on an empty one."""
        (file,) = map(Path, paths)
        if len(list(file.parent.iterdir())) > 1:
            file.unlink()
            return
        with held_beside(Path(self.legacy.path) / file.parent.name) as gone:
            file.parent.replace(gone / file.parent.name)

    def _remove_remote(self, paths: Sequence[str]) -> None:
        """Remove files of the remote, and first DVC's local index of it, which a push takes for proof of an object."""
        assert self.remote_of
        with remote_errors(self.remote_of):
            with closing(get_index(self.database)) as index:
                index.clear()
            self._remove(paths)


def files_in(oid: str, places: Iterable[Place]) -> dict[str, str]:
    """Return name → hash of the files in the folder with this hash; empty if it is a file, or if no place has its list,
    because then it cannot be restored.

    Raises:
        ArtifactError: each copy of the list is damaged.
    """
    copies = [(place, place.objects[oid]) for place in places if oid in place.objects and is_folder(oid)]
    for place, path in copies:
        content = place.read(path)
        if hashlib.md5(content, usedforsecurity=False).hexdigest() == content_hash(oid):
            return listed_files(content)
    if not copies:
        return {}
    raise ArtifactError(
        "the list of files of a folder that is still needed is damaged, so its files are not known",
        given=copies[-1][1],
        expected="content that matches its name",
        do="remove that file, and restore it (`dvc fetch`) or run its stage again; nothing was removed",
    )


def places_of(repo: Repo, *, with_cache: bool, with_remote: bool) -> list[Place]:
    """Return the project's cache, and its remote if it has one.

    Raises:
        ArtifactError, TransientError: the remote cannot be used; see `remote.add`.
    """
    runs = Path(repo.stage_cache.cache_dir)
    places = [Place("DVC cache", repo.cache.local, repo.cache.legacy, runs)] if with_cache else []
    if with_remote and has_remote(repo):
        check(repo)
        with remote_errors(repo):
            remote = repo.cloud.get_remote()
            places.append(Place("DVC remote", remote.odb, remote.legacy_odb, runs, remote_of=repo))
    return places
