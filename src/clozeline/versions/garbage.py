"""Objects and runs of DVC's cache and remote that are no longer needed.

DVC's own `gc` goes by git alone: it would delete what a released version needs, ignores the run cache and knows no age.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from dvc.exceptions import DvcException
from dvc.repo import Repo, lock_repo
from dvc.scm import NoSCM
from dvc_data.hashfile.db import get_index
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from clozeline.artifacts.lock import Lock, LockedStage
from clozeline.errors import ArtifactError, ParamsError
from clozeline.storage.beside import held_beside
from clozeline.storage.sweep import Removal, Store
from clozeline.versions.project import open_project
from clozeline.versions.remote import check, has_remote, remote_errors
from clozeline.versions.stored_files import StoredFile, stored_files

_FOLDER: Final = ".dir"
_PER_CALL: Final = 500
"""Files that are removed from a remote at once."""


@contextmanager
def dvc_stores(root: Path, locks: Iterable[Lock], before: datetime, *, shared: bool) -> Iterator[tuple[Store, ...]]:
    """Yield the stores of the project in `root`, while DVC's lock is held: its cache and, with `shared`, its remote.

    Kept are: every hash in `locks`, in the working tree, and in all branches, tags, stashes and experiments of git;
    everything that was written since `before`, with the outputs of such runs; and the files in each folder that is
    kept. A cache outside the project counts as shared.

    Raises:
        ParamsError: a branch or tag has stages or data that DVC cannot read.
        ArtifactError: the list of files of a folder that is kept is damaged; or see `remote.add`.
        TransientError: the remote does not answer.
    """
    with open_project(root, waits_for_lock=True) as repo, lock_repo(repo):
        runs = Path(repo.stage_cache.cache_dir)
        needed = {path.md5 for lock in locks for stage in lock.stages.values() for path in (*stage.deps, *stage.outs)}
        needed |= _recorded_in_git(repo)
        places = []
        if shared or Path(repo.cache.local.path).resolve().is_relative_to(Path(repo.root_dir).resolve()):
            places.append(_Place("DVC cache", repo.cache.local, repo.cache.legacy, runs))
        if not (shared and has_remote(repo)):
            yield _stores(places, needed, before)
            return
        check(repo)
        with remote_errors(repo):
            remote = repo.cloud.get_remote()
            places.append(_Place("DVC remote", remote.odb, remote.legacy_odb, runs, remote_of=repo))
            stores = _stores(places, needed, before)
        yield stores


def _stores(places: "Sequence[_Place]", needed: set[str | None], before: datetime) -> tuple[Store, ...]:
    """Return the stores of all places. An object that is recent in one place is kept in all."""
    roots = {oid for oid in needed if oid}.union(*(place.young(before) for place in places))
    kept = roots.union(*(_members(oid, places) for oid in roots if oid.endswith(_FOLDER)))
    return tuple(store for place in places for store in place.stores(kept, before))


def _members(folder: str, places: "Iterable[_Place]") -> set[str]:
    """Return the hashes of the files in `folder`; empty if no place has its list, because then it cannot be restored.

    Raises:
        ArtifactError: each copy of the list is damaged.
    """
    damaged = ""
    for place in places:
        path = place.objects.get(folder)
        if path is not None:
            content = place.read(path)
            if hashlib.md5(content, usedforsecurity=False).hexdigest() == folder.removesuffix(_FOLDER):
                return {str(entry["md5"]) for entry in json.loads(content)}
            damaged = path
    if not damaged:
        return set()
    raise ArtifactError(
        "the list of files of a folder that is still needed is damaged, so its files are not known",
        given=damaged,
        expected="content that matches its name",
        do="remove that file, and restore it (`dvc fetch`) or run its stage again; nothing was removed",
    )


@dataclass(frozen=True)
class _Place:
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
    def runs(self) -> Mapping[str, frozenset[str]]:
        """Path → hashes of the outputs, for each record of the run cache; a damaged record has an output without a
        name, so that it is removed."""
        return {path: self._outs_of(path) for path in self._listed(self.legacy.fs.join(self.legacy.path, "runs"))}

    def read(self, path: str) -> bytes:
        with self.database.fs.open(path, "rb") as file:
            content: bytes = file.read()
        return content

    def young(self, before: datetime) -> set[str]:
        """Return the objects, and the outputs of the runs, that were written since `before`."""
        objects = {oid for oid, path in self.objects.items() if not self._files[path].is_older_than(before)}
        return objects.union(*(outs for path, outs in self.runs.items() if not self._files[path].is_older_than(before)))

    def stores(self, kept: set[str], before: datetime) -> tuple[Store, Store]:
        """Return the run cache and the objects.

        Runs are removed before objects, so that no run names a missing object. The list of a folder is removed before
        the files in it, because DVC takes the list as proof of the files.
        """
        old_runs = [
            path for path, outs in self.runs.items() if self._files[path].is_older_than(before) and not outs <= kept
        ]
        old = [path for oid, path in self.objects.items() if oid not in kept]
        lists = [path for path in old if path.endswith(_FOLDER)]
        files = [path for path in old if not path.endswith(_FOLDER)]
        remove, remove_run = (self._remove_remote,) * 2 if self.remote_of else (self._remove, self._remove_run)
        removals = (*self._removals(lists, remove), *self._removals(files, remove))
        return (
            Store(f"{self.name}: runs", len(self.runs) - len(old_runs), self._removals(old_runs, remove_run)),
            Store(f"{self.name}: objects", len(self.objects) - len(old), removals),
        )

    def _listed(self, folder: str) -> list[str]:
        found = {file.path: file for file in stored_files(self.database, folder)}
        self._files.update(found)
        return list(found)

    def _outs_of(self, run: str) -> frozenset[str]:
        copy = self.local_runs.joinpath(*Path(run).parts[-3:])  # named by the hash of its content
        for read in (copy.read_bytes, partial(self.read, run)):
            with suppress(FileNotFoundError, ValueError, YAMLError):
                stage = LockedStage.model_validate(YAML(typ="safe").load(read()))
                return frozenset(path.md5 for path in stage.outs if path.md5)
        return frozenset({""})

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


def _recorded_in_git(repo: Repo) -> set[str]:
    """Return the hashes of the working tree; if the project is in git, also of all its branches, tags, stashes and
    experiments, and of HEAD.

    The branches of other clones count as far as they were fetched.

    Raises:
        ParamsError: DVC cannot read one of them.
    """
    refs: list[str] = []
    if not isinstance(repo.scm, NoSCM):
        refs = [ref for ref in repo.scm.iter_refs("refs/") if not ref.endswith("/HEAD")]
        refs += [*(["HEAD"] if refs else []), *(entry.new_sha.decode() for entry in repo.scm.stash)]
    found: set[str] = set()
    revision = "the working tree"
    try:
        for name in repo.brancher(refs):
            revision = name or revision
            hashes = (item.hash_info.value for item in (*repo.index.outs, *repo.index.deps))
            found.update(value for value in hashes if isinstance(value, str))  # that of params is a mapping
    except DvcException as error:
        raise ParamsError(
            "DVC cannot read what git records, so the files that it needs are not known",
            given=f"{revision}: {error}",
            expected="branches and tags whose dvc.yaml, dvc.lock and .dvc files DVC can read",
            do="correct or delete that branch or tag; nothing was removed",
        ) from error
    return found
