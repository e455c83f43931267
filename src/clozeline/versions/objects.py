"""Objects of DVC by their hashes: where their bytes are, which are no longer needed, and which hold a text.

The bytes behind a hash of dvc.lock are in DVC's cache or remote, in the workspace, or in git. Objects and the run cache
lie in one place, which is the cache or the remote. DVC's own `gc` goes by git alone: it would delete what a released
version needs, ignores the run cache and knows no age. An object that holds a text is found with those that were made of
it.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from clozeline.records.record import Lock, LockedStage
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.system.files import Removal, SweptStore, held_beside, md5_of
from clozeline.system.progress import track
from clozeline.versions import project, remote
from clozeline.versions.remote import FOLDER, is_folder, listed_files, remote_errors

# Files that are removed from a remote at once.
_PER_CALL = 500

_COMMIT = re.compile("[0-9a-f]{7,64}")

# Outputs that are learnt from a text and do not quote it.
_MODELS = ("models/", "dist/")


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
        with project.open_project(root) as repo:
            yield cls(repo)

    def fault_of(self, path: str, md5: str, commit: str | None) -> str | None:
        """Return a description of what is missing or damaged in `path` at `md5`; None if every byte is available."""
        fault = self._fault_in_cache(md5)
        if fault is None or self.md5_of(self._root / path) == md5:
            return None
        # The commit comes from a tag of MLflow: git would take one that begins with `-` as an option.
        in_git = project.git(self._root, "show", f"{commit}:{path}") if commit and _COMMIT.fullmatch(commit) else None
        if in_git is not None and md5_of(in_git) == md5:
            return None
        if remote.has_remote(self._repo):
            self._fetch(md5)
            fault = self._fault_in_cache(md5)
        return fault

    def md5_of(self, path: Path) -> str | None:
        """Return DVC's hash of a file or folder, of which every byte is read; None if the path is missing."""
        from dvc.fs import localfs
        from dvc_data.hashfile.build import build
        from dvc_data.hashfile.db import HashFileDB

        if not path.exists():
            return None
        # .dvcignore covers all of `work/`, where registered packages lie, so it must not apply there.
        ignored = None if path.is_relative_to(self._root / "work") else self._repo.dvcignore
        database = HashFileDB(localfs, str(self._cache))  # without DVC's notes of hashes, which a forged object has
        _, _, built = build(database, str(path), localfs, "md5", dry_run=True, ignore=ignored)
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

        remote.check(self._repo)
        with suppress(DvcException, FileNotFoundError):
            self._repo.cloud.pull([HashInfo("md5", md5)])
            if is_folder(md5):  # DVC fetched only the list of its files
                files = listed_files(self._cached(md5).read_bytes()).values()
                self._repo.cloud.pull([HashInfo("md5", file) for file in files])

    def keep(self, path: Path) -> None:
        """Store a file in DVC's cache, so that it is found there when the workspace has another content."""
        from dvc.fs import localfs

        self._repo.cache.local.add(str(path), localfs, md5_of(path))

    def _fault_in_cache(self, md5: str) -> str | None:
        file = self._cached(md5)
        if not file.is_file():
            return f"{md5} is neither in the cache, nor in the workspace, nor in git"
        if md5_of(file) != md5.removesuffix(FOLDER):
            return f"{file} is damaged: its content does not match its name"
        if not is_folder(md5):
            return None
        for name, inner in listed_files(file.read_bytes()).items():
            fault = self._fault_in_cache(inner)
            if fault:
                return f"{name}: {fault}"
        return None


@dataclass(frozen=True)
class Place:
    """A cache or remote: its objects, and the run cache, whose records lead to objects."""

    name: str
    database: Any
    legacy: Any  # object database of DVC 2, in whose folder DVC 3 keeps the run cache
    local_runs: Path  # run cache of the project, which has copies of most records of a remote
    remote_of: project.Repo | None = None
    _files: dict[str, remote.StoredFile] = field(default_factory=dict)  # each file that was listed, by its path

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

    def holds(self, oid: str, holds: Callable[[Path], bool]) -> bool:
        """Return whether `holds` is true for the file of an object."""
        path = self.objects[oid]
        if not self.remote_of:
            return holds(Path(path))
        with tempfile.NamedTemporaryFile() as copy:
            with remote_errors(self.remote_of), self.database.fs.open(path, "rb") as file:
                shutil.copyfileobj(file, copy)
            copy.flush()
            return holds(Path(copy.name))

    def young(self, before: datetime) -> set[str]:
        """Return the objects, and the outputs of the runs, that were written since `before`."""
        objects = {oid for oid, path in self.objects.items() if not self._files[path].is_older_than(before)}
        return objects.union(*(outs for path, outs in self.runs.items() if not self._files[path].is_older_than(before)))

    def stores(self, kept: set[str], before: datetime) -> tuple[SweptStore, SweptStore]:
        """Return the run cache and the objects without what is in `kept` or was written since `before`."""
        old = [path for path, outs in self.runs.items() if self._files[path].is_older_than(before) and not outs <= kept]
        return self.without(self.objects.keys() - kept, old)

    def without(self, objects: Collection[str], runs: Collection[str]) -> tuple[SweptStore, SweptStore]:
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
            SweptStore(f"{self.name}: runs", len(self.runs) - len(runs), self._removals(runs, remove_run)),
            SweptStore(f"{self.name}: objects", len(self.objects) - len(gone), removals),
        )

    def _listed(self, folder: str) -> list[str]:
        found = {file.path: file for file in remote.stored_files(self.database, folder)}
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
        from dvc_data.hashfile.db import get_index

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
        if md5_of(content) == oid.removesuffix(FOLDER):
            return listed_files(content)
    if not copies:
        return {}
    raise ArtifactError(
        f"{copies[-1][1]} does not match its name: the list of files of a folder that is still needed is damaged",
        do="remove that file, and restore it (`dvc fetch`) or run its stage again; nothing was removed",
    )


def _recorded_in_git(repo: project.Repo) -> set[str]:
    """Return the hashes of the working tree; if the project is in git, also of all its branches, tags, stashes and
    experiments, and of HEAD.

    The branches of other clones count as far as they were fetched.

    Raises:
        ParamsError: DVC cannot read one of them.
    """
    from dvc.exceptions import DvcException
    from dvc.scm import NoSCM

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
            f"DVC cannot read what git records at {revision}, so the files that it needs are not known: {error}",
            do="correct or delete that branch or tag; nothing was removed",
        ) from error
    return found


class Stored:
    """All that DVC stores of a project, in its cache and its remote, while its lock is held."""

    def __init__(self, repo: project.Repo, *, shared: bool) -> None:
        self._repo = repo
        runs = Path(repo.stage_cache.cache_dir)
        is_own = Path(repo.cache.local.path).resolve().is_relative_to(Path(repo.root_dir).resolve())
        self.places = [Place("DVC cache", repo.cache.local, repo.cache.legacy, runs)] if shared or is_own else []
        self._has_remote = shared and remote.has_remote(repo)
        if self._has_remote:
            remote.check(repo)
            with remote_errors(repo):
                store = repo.cloud.get_remote()
                self.places.append(Place("DVC remote", store.odb, store.legacy_odb, runs, remote_of=repo))

    @classmethod
    @contextmanager
    def open(cls, root: Path, *, shared: bool = True) -> Iterator[Self]:
        """Open the stores of the project in `root`: its cache and, if `shared`, its remote.

        A cache outside the project counts as shared.

        Raises:
            ArtifactError, TransientError: the remote cannot be used; see `remote.add`.
        """
        from dvc.repo import lock_repo

        with project.open_project(root, waits_for_lock=True) as repo, lock_repo(repo):
            stored = cls(repo, shared=shared)
            with stored._errors_named():
                for place in stored.places:
                    _ = (place.objects, place.records)
            yield stored

    def _errors_named(self) -> AbstractContextManager[None]:
        return remote_errors(self._repo) if self._has_remote else nullcontext()

    def without_old(self, locks: Iterable[Lock], before: datetime) -> tuple[SweptStore, ...]:
        """Return the stores of all places without what is no longer needed.

        Kept are: every hash in `locks`, in the working tree, and in all branches, tags, stashes and experiments of git;
        everything that was written since `before`, with the outputs of such runs; and the files in each folder that is
        kept.

        Raises:
            ParamsError: a branch or tag has stages or data that DVC cannot read.
            ArtifactError: the list of files of a folder that is kept is damaged.
            TransientError: the remote does not answer.
        """
        needed = {path.md5 for lock in locks for stage in lock.stages.values() for path in (*stage.deps, *stage.outs)}
        needed |= _recorded_in_git(self._repo)
        with self._errors_named():
            # An object that is recent in one place is kept in all.
            roots = {oid for oid in needed if oid}.union(*(place.young(before) for place in self.places))
            kept = roots.union(*(files_in(oid, self.places).values() for oid in roots))
            return tuple(store for place in self.places for store in place.stores(kept, before))

    def holding(self, holds: Callable[[Path], bool]) -> frozenset[str]:
        """Return the hashes of the files for which `holds` is true; each is looked at once, wherever it is stored."""
        where = {oid: place for place in reversed(self.places) for oid in place.objects}
        files = [oid for oid in sorted(where) if not is_folder(oid)]
        return frozenset(oid for oid in track(files, "Searching objects", len(files)) if where[oid].holds(oid, holds))

    def files_in(self, oid: str) -> dict[str, str]:
        """Return name → hash of the files in the folder with this hash; empty if it is a file, or its list is gone."""
        with suppress(ArtifactError):  # damaged everywhere, so that nothing can be restored by it
            return files_in(oid, self.places)
        return {}

    def spread(self, holding: Collection[str], locks: Iterable[Lock]) -> frozenset[str]:
        """Return the hashes of the files `holding`, of the folders with one of them, and of what was made of these.

        Models are left out, unless they have one of the files: their weights cannot be searched.
        """
        runs = [run for place in self.places for run in place.records.values() if run]
        runs += [stage for lock in locks for stage in lock.stages.values()]
        lists = {oid for place in self.places for oid in place.objects if is_folder(oid)}
        members = {oid: frozenset(self.files_in(oid).values()) for oid in lists}
        found = set(holding) | {oid for oid in lists if not members[oid].isdisjoint(holding)}
        made = self._made_of(found, runs)
        inside = frozenset[str]().union(*(members.get(oid, frozenset()) for oid in made))
        elsewhere = frozenset[str]().union(*(members[oid] for oid in lists - found - made))
        return frozenset(found | made | (inside - elsewhere))

    def _made_of(self, found: Collection[str], runs: Iterable[LockedStage]) -> set[str]:
        """Return the hashes of the outputs that runs made of `found`, of those outputs, and so on."""
        known, made, runs = set(found), set[str](), list(runs)
        while True:
            reached = [run for run in runs if any(dep.md5 in known for dep in run.deps)]
            outs = {out.md5 for run in reached for out in run.outs if out.md5 and not out.path.startswith(_MODELS)}
            if outs <= known:
                return made
            made |= outs - set(found)
            known |= outs.union(*(self.files_in(out).values() for out in outs))

    def without(self, objects: Collection[str]) -> tuple[SweptStore, ...]:
        """Return the stores of all places without `objects`, and without the runs that would restore one of them."""
        return tuple(
            store
            for place in self.places
            for store in place.without(objects, [run for run, outs in place.runs.items() if outs & set(objects)])
        )

    def replace_output(self, stage: str, path: Path) -> None:
        """Store the present content of the output `path` of `stage`, and let dvc.lock name it.

        Its inputs stay as they were locked, so the stage runs again if they have changed since.
        """
        loaded: Any = self._repo.stage.load_one(str(Path(self._repo.root_dir) / "dvc.yaml"), stage)
        for dep in loaded.deps:
            if not dep.hash_info:
                dep.save()
        (out,) = (out for out in loaded.outs if out.def_path == path.as_posix())
        out.save()
        out.commit()
        loaded.dump(update_pipeline=False)
