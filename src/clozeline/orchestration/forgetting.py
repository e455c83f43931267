"""Forget a text: find it in every store of a project, remove it there, and keep it out."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from clozeline.artifacts.lock import Lock, LockedPath
from clozeline.artifacts.record import Record
from clozeline.artifacts.snapshot import forgotten as tombstones
from clozeline.artifacts.snapshot.forgotten import FORGOTTEN_LOCK, MIN_WORDS, Forgotten, words_of
from clozeline.artifacts.snapshot.manifest import Earlier
from clozeline.errors import ArtifactError, DataError, TransientError
from clozeline.importing.items_file import FOLDER as ITEMS
from clozeline.lineage.trace import Ancestor, ancestry
from clozeline.orchestration.forgotten_items import hashes_of_quoting, items_store
from clozeline.orchestration.rewriting import rewrite
from clozeline.orchestration.run_lock import run_lock
from clozeline.orchestration.sought import Sought
from clozeline.registry import MODEL_PREFIX, Registered
from clozeline.registry.forgotten import every_version, mark
from clozeline.registry.publishing import LOCK, Publisher
from clozeline.storage.atomic import remove_folder, replacing_file, replacing_folder
from clozeline.storage.sweep import Removal, Store, sweep
from clozeline.tracking.addresses import database_of
from clozeline.tracking.flow_run import deliver_waiting
from clozeline.tracking.searched_files import search_files
from clozeline.versions.last_output import last_output
from clozeline.versions.spread import Stored
from clozeline.workspace import Workspace, tracking_uri

_SNAPSHOT: Final = "snapshot"
_MADE_OF_TEXT: Final = ("preprocess", "tokenize", "pretrain", "finetune", "trial", "experiments")
"""Folders of work/ with results and checkpoints that the next run makes again."""
_NOT_SEARCHED: Final = ("mlflow", "prefect", "registry", "start", "outbox")
"""Folders of work/ that are searched by their own means, or hold weights."""
_UNFINISHED: Final = "work/forgetting.json"


@dataclass(frozen=True)
class AffectedVersion:
    """A registered version whose lineage holds the text, or was made of a file that does."""

    version: Registered
    aliases: tuple[str, ...]
    holding: tuple[str, ...]
    """Files of its lineage that hold the text."""
    removed: tuple[str, ...]
    """Paths of its lineage that are removed."""
    was_trained_on: bool


@dataclass(frozen=True)
class Findings:
    """Where a text is, and what is removed."""

    num_words: int
    is_known: bool
    """Whether it has a tombstone already."""
    holding: tuple[str, ...]
    """Files of the present snapshot and splits that hold it."""
    versions: tuple[AffectedVersion, ...]
    stores: tuple[Store, ...]
    left: tuple[str, ...]
    """Places that hold it and are not changed."""

    @property
    def is_anywhere(self) -> bool:
        return bool(self.holding or self.versions or any(store.removals for store in self.stores))


class _Unfinished(Record):
    """Objects that a killed `forget` was to remove: some links between them may be gone."""

    objects: tuple[str, ...] = ()


def forget(workspace: Workspace, text: str, max_characters: int, *, is_dry: bool) -> Findings:
    """Find `text` in every store; unless `is_dry`, remove it, and record a tombstone that keeps it out.

    Every store is read before the first change. A killed one is finished by the next one for the same text.

    Raises:
        DataError: the text is too short.
        ArtifactError: `forgotten.lock` or its key cannot be used, or a server refuses the caller.
        TransientError: the remote or MLflow does not answer, or a run is active.
    """
    if len(words_of(text)) < MIN_WORDS:
        raise _too_short(text)
    with ExitStack() as stack:
        if not is_dry:
            stack.enter_context(run_lock(workspace.lock_file))
            _deliver_all(workspace)
        stored = stack.enter_context(Stored.open(workspace.root))
        forgetting = _Forgetting(workspace, Sought.of(text, max_characters), text, stored)
        findings = forgetting.findings()
        if not is_dry:
            forgetting.carry_out(findings)
    return findings


class _Forgetting:
    def __init__(self, workspace: Workspace, sought: Sought, text: str, stored: Stored) -> None:
        self._root, self._workspace, self._sought, self._stored = workspace.root, workspace, sought, stored
        self._address = tracking_uri(workspace)
        before = Forgotten.read(self._root / FORGOTTEN_LOCK)
        self._forgotten = tombstones.with_tombstone(self._root / FORGOTTEN_LOCK, text)
        self._is_known = before == self._forgotten
        self._num_words = len(words_of(text))
        lock = self._root / "dvc.lock"
        self._lock = Lock.read(lock) if lock.is_file() else Lock(stages={})
        self._registered = self._versions()
        locks = [self._lock, *(one for _, _, one in self._registered if one)]
        items = hashes_of_quoting(self._root, sought, self._lock)
        self._holding = frozenset(stored.holding(sought.is_in)).union(self._in_outputs(), items)
        self._spread = stored.spread(self._holding, locks).union(self._unfinished().objects)

    def findings(self) -> Findings:
        versions = tuple(self._affected())
        runs = {version.run_id for version, _, _ in self._registered}
        in_runs = search_files(self._address, self._sought.is_quoted_in, runs) if self._has_mlflow else None
        stores = (
            *self._stored.without(self._spread),
            self._outputs(),
            items_store(self._root, self._sought),
            *self._in_work(),
            *([in_runs.removable] if in_runs else []),
        )
        left = (*self._in_sources(), *self._in_copies(), *(in_runs.of_versions if in_runs else ()))
        held = tuple(self._held_of(self._present()))
        return Findings(self._num_words, self._is_known, held, versions, stores, left)

    def carry_out(self, findings: Findings) -> None:
        """First the tombstone, so that the text cannot come back; then the marks, which need what is removed last."""
        tombstones.write(self._root / FORGOTTEN_LOCK, self._forgotten)
        with replacing_file(self._root / _UNFINISHED) as file:
            file.write_text(_Unfinished(objects=tuple(sorted(self._spread))).model_dump_json(), encoding="utf-8")
        for one in findings.versions:
            mark(one.version, one.removed, self._address, was_trained_on=one.was_trained_on)
        self._rewrite_snapshot()
        sweep(findings.stores)
        (self._root / _UNFINISHED).unlink()

    @property
    def _has_mlflow(self) -> bool:
        database = database_of(self._address)
        return database is None or database.exists()

    def _versions(self) -> list[tuple[Registered, tuple[str, ...], Lock | None]]:
        """Return every registered version with its aliases, and its dvc.lock if that is still there."""
        found: list[tuple[Registered, tuple[str, ...], Lock | None]] = []
        for version, aliases in every_version(self._address) if self._has_mlflow else ():
            lock = None
            try:
                with Publisher(self._address).evidence(version) as evidence:
                    lock = Lock.read(evidence / LOCK)
            except ArtifactError:  # without it nobody can say what the version was made of
                pass
            found.append((version, aliases, lock))
        return found

    def _affected(self) -> Iterator[AffectedVersion]:
        for version, aliases, lock in self._registered:
            if lock is None:
                continue
            behind = list(ancestry(lock, f"dist/{version.name.removeprefix(MODEL_PREFIX)}").all())
            removed = tuple(sorted(one.path for one in behind if one.md5 in self._spread))
            if removed:
                raw = [one for one in behind if one.stage == _SNAPSHOT]
                clean = [one for one in behind if one not in raw and one.stage]
                was_trained_on = any(self._held_of(clean))
                yield AffectedVersion(version, aliases, tuple(self._held_of(behind)), removed, was_trained_on)

    def _held_of(self, ancestors: Iterable[Ancestor]) -> Iterator[str]:
        """Yield the files of these ancestors that hold the text."""
        for one in ancestors:
            if one.md5 in self._holding:
                yield one.path
            for name, md5 in self._stored.files_in(one.md5).items():
                if md5 in self._holding:
                    yield f"{one.path}/{name}"

    def _present(self) -> Iterator[Ancestor]:
        """Yield the outputs of the stages, and the items of imports."""
        for name, stage in self._lock.stages.items():
            items = [dep for dep in stage.data if dep.path.startswith(f"{ITEMS}/")]
            yield from (Ancestor(one.path, one.md5 or "", name, ()) for one in (*stage.outs, *items))

    def _outs(self) -> list[tuple[str, LockedPath]]:
        return [(name, out) for name, stage in self._lock.stages.items() for out in stage.outs]

    def _in_outputs(self) -> Iterator[str]:
        """Yield the hashes of the outputs in the workspace that hold the text: the cache may have lost them."""
        for _, out in self._outs():
            is_searched = any(out.md5 in place.objects for place in self._stored.places)
            if out.md5 and not is_searched and any(map(self._sought.is_in, _files(self._root / out.path))):
                yield out.md5

    def _outputs(self) -> Store:
        gone = [out for name, out in self._outs() if out.md5 in self._spread and name != _SNAPSHOT]
        paths = [self._root / out.path for out in gone if (self._root / out.path).exists()]
        return Store("workspace: outputs", len(self._outs()) - len(paths), tuple(map(_removal, paths)))

    def _in_work(self) -> Iterator[Store]:
        """Yield what the next run makes again, and the files that quote the text."""
        work = self._workspace.work
        made = [work / name for name in _MADE_OF_TEXT if self._spread and (work / name).exists()]
        yield Store("work: kept results and checkpoints", 0, tuple(map(_removal, made)))
        folders = [self._root / name for name in ("reports", "plots", "metrics")]
        folders += [one for one in sorted(work.glob("*")) if one.name not in (*_NOT_SEARCHED, *_MADE_OF_TEXT)]
        files = [file for folder in folders for file in _files(folder)]
        quoting = {self._whole(file) for file in files if self._sought.is_quoted_in(file)}
        yield Store("work and reports: files", len(files) - len(quoting), tuple(map(_removal, sorted(quoting))))

    def _whole(self, file: Path) -> Path:
        """Return what has to go with `file`: a search index is useless without one of its files."""
        indexes = self._workspace.work / "search"
        return indexes / file.relative_to(indexes).parts[0] if file.is_relative_to(indexes) else file

    def _in_sources(self) -> Iterator[str]:
        """Yield the files that no stage makes and that hold the text; they are the user's."""
        deps = {dep.path for stage in self._lock.stages.values() for dep in stage.data}
        sources = (path for path in deps if not self._lock.maker_of(path) and not path.startswith(f"{ITEMS}/"))
        for path in sorted(sources):
            for file in _files(self._root / path):
                if self._sought.is_in(file):
                    yield f"{file.relative_to(self._root) if file.is_relative_to(self._root) else file}: a source"

    def _in_copies(self) -> Iterator[str]:
        for file in _files(self._workspace.work / "registry"):
            if self._sought.is_in(file):
                yield f"{file.relative_to(self._root)}: a copy of a registered package"

    def _rewrite_snapshot(self) -> None:
        """Write the present snapshot without the text, and let dvc.lock name it, unless that was done before."""
        stage = self._lock.stages.get(_SNAPSHOT)
        out = next(iter(stage.outs), None) if stage else None
        if out is None or out.md5 not in self._spread:
            return
        folder = Path(out.path)
        is_there = (self._root / folder).is_dir()
        earlier = Earlier.among(last_output(self._root, self._root / folder if is_there else folder))
        if earlier.manifest is None:  # not taken by this project's stage: the next run takes it again
            remove_folder(self._root / folder)
            return
        with replacing_folder(self._root / folder) as beside:
            rewrite(earlier, self._forgotten, beside)
        self._stored.replace_output(_SNAPSHOT, folder)

    def _unfinished(self) -> _Unfinished:
        file = self._root / _UNFINISHED
        return _Unfinished.model_validate_json(file.read_bytes()) if file.is_file() else _Unfinished()


def _deliver_all(workspace: Workspace) -> None:
    address = tracking_uri(workspace)
    if reason := deliver_waiting(workspace.outbox, address):
        raise TransientError(
            "MLflow did not take all records of earlier runs, which may quote the text",
            given=f"{address}; {workspace.outbox}: {reason}",
            expected="a server that takes them, and the store of its files",
            do="start that store, or try again later; nothing was removed",
        )


def _too_short(text: str) -> DataError:
    return DataError(
        "the text is too short to be told from others",
        given=f"{len(words_of(text))} words: {text.strip()[:60]!r}",
        expected=f"at least {MIN_WORDS} words, because the text is cut out of every longer one that holds it",
        do="give the whole document: `clozeline forget FILE`",
    )


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _removal(path: Path) -> Removal:
    files = _files(path)
    return Removal(sum(file.stat().st_size for file in files), partial(_remove, path))


def _remove(path: Path) -> None:
    if path.is_dir():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)
