"""Objects of DVC's cache and remote that hold a text, and those that were made of them."""

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from dvc.repo import Repo, lock_repo

from clozeline.artifacts.lock import Lock, LockedStage
from clozeline.errors import ArtifactError
from clozeline.progress import track
from clozeline.storage.sweep import Store
from clozeline.versions.places import Place, files_in, places_of
from clozeline.versions.project import open_project
from clozeline.versions.remote import remote_errors
from clozeline.versions.stored_files import is_folder

_MODELS: Final = ("models/", "dist/")
"""Outputs that are learnt from a text and do not quote it."""


class Stored:
    """All that DVC stores of a project, in its cache and its remote, while its lock is held."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self.places: list[Place] = places_of(repo, with_cache=True, with_remote=True)

    @classmethod
    @contextmanager
    def open(cls, root: Path) -> Iterator[Self]:
        """Open the stores of the project in `root`.

        Raises:
            ArtifactError, TransientError: the remote cannot be used; see `remote.add`.
        """
        with open_project(root, waits_for_lock=True) as repo, lock_repo(repo):
            stored = cls(repo)
            with remote_errors(repo):
                for place in stored.places:
                    _ = (place.objects, place.records)
            yield stored

    def holding(self, holds: Callable[[Path], bool]) -> frozenset[str]:
        """Return the hashes of the files for which `holds` is true; each is looked at once, wherever it is stored."""
        where = {oid: place for place in reversed(self.places) for oid in place.objects}
        files = [oid for oid in sorted(where) if not is_folder(oid)]
        return frozenset(oid for oid in track(files, "Searching objects", len(files)) if self._holds(where, oid, holds))

    def _holds(self, where: Mapping[str, Place], oid: str, holds: Callable[[Path], bool]) -> bool:
        place = where[oid]
        path = place.objects[oid]
        if not place.remote_of:
            return holds(Path(path))
        with tempfile.NamedTemporaryFile() as copy:
            with remote_errors(self._repo), place.database.fs.open(path, "rb") as file:
                shutil.copyfileobj(file, copy)
            copy.flush()
            return holds(Path(copy.name))

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

    def without(self, objects: Collection[str]) -> tuple[Store, ...]:
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
