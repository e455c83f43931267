"""Forget a text: find it in every store of a project, remove it there, and keep it out.

The last snapshot is written once more, without the forgotten texts: its order and its numbers stay.
"""

import html
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.corpus.cleaning.preparation import clean, split_long
from clozeline.corpus.sources.store import SnapshotStore, keep_earlier_records
from clozeline.orchestration.garbage import held_to_remove, lock_of
from clozeline.orchestration.import_items import FOLDER as ITEMS
from clozeline.orchestration.import_items import items_files, without, write_items
from clozeline.records import record, snapshot
from clozeline.records.finetune.scored_items import HeldOut
from clozeline.records.reading.streams import decompressed
from clozeline.records.snapshot import FORGOTTEN_LOCK, MANIFEST, MIN_WORDS, Earlier, Forgotten, words_of
from clozeline.registry import decisions, lineage, models, publishing
from clozeline.system.errors import ArtifactError, DataError
from clozeline.system.files import Removal, SweptStore, files_in, remove_folder, replacing_folder, sweep
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.tracking.addresses import database_of
from clozeline.tracking.past_runs import search_files
from clozeline.versions.objects import Stored
from clozeline.versions.project import last_output, own_lock

_PARQUET = b"PAR1"
_BLOCK_BYTES = 1 << 22
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrtbf])")
_SNAPSHOT = "snapshot"
# Folders of work/ with results and checkpoints that the next run makes again.
_MADE_OF_TEXT = ("preprocess", "tokenize", "pretrain", "finetune", "trial", "experiments")
# Folders of work/ that are searched by their own means, or hold weights.
_NOT_SEARCHED = ("mlflow", "prefect", "registry", "start", "outbox")
_UNFINISHED = "work/forgetting.json"


@dataclass(frozen=True)
class Sought:
    """The text, as it was given, as stage `preprocess` cleans it, and the parts that it cuts a long text into."""

    text: str
    forms: Forgotten  # tombstones of its forms, with a key of their own

    @classmethod
    def of(cls, text: str, max_characters: int) -> Self:
        forms = Forgotten(key=b"search")
        cleaned = [clean(text, decode_entities=decodes) for decodes in (True, False)]
        for form in (text, *cleaned, *(part for one in cleaned for part in split_long(one, max_characters))):
            if len(words_of(form)) >= MIN_WORDS:
                forms = forms.with_text(form)
        return cls(text, forms)

    def is_in(self, path: Path) -> bool:
        """Whether the whole text is in a file, by itself or inside a longer one."""
        return any(self.forms.cut(part) != part for part in _parts(path, self.forms))

    def is_quoted_in(self, path: Path) -> bool:
        """Whether any `MIN_WORDS` words in a row of the text are in a file."""
        return any(map(self.is_quoted_by, _parts(path, self.forms)))

    def is_quoted_by(self, text: str) -> bool:
        """Whether any `MIN_WORDS` words in a row of the text are in another one."""
        return not self._runs.isdisjoint(_runs_of(text))

    @cached_property
    def _runs(self) -> frozenset[tuple[str, ...]]:
        return frozenset(_runs_of(self.text))


def _runs_of(text: str) -> Iterator[tuple[str, ...]]:
    words = words_of(text)
    return (tuple(words[place : place + MIN_WORDS]) for place in range(len(words) - MIN_WORDS + 1))


def _parts(path: Path, forms: Forgotten) -> Iterator[str]:
    """Yield the text of a file in parts that overlap; nothing if it is not text."""
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET)) == _PARQUET
        yield from _cells(path) if is_parquet else _blocks(path, forms)
    except (DataError, pa.ArrowInvalid):  # damaged, or only similar to one of the formats
        return


def _cells(path: Path) -> Iterator[str]:
    with pq.ParquetFile(path) as table:
        for batch in table.iter_batches(1_000, use_threads=False):
            for column in batch.columns:
                yield from (value if isinstance(value, str) else str(value) for value in column.to_pylist() if value)


def _blocks(path: Path, forms: Forgotten) -> Iterator[str]:
    rest = ""
    with decompressed(path) as stream:
        while block := stream.read(_BLOCK_BYTES):
            block += stream.readline()
            if 0 in block[:4096]:
                return
            text = block.decode("utf-8", errors="replace")
            unescaped = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else " ", text)
            for form in dict.fromkeys((text, unescaped, html.unescape(text))):
                yield rest + form
            rest = text[forms.start_of_rest(text) :]


def items_store(root: Path, sought: Sought) -> SweptStore:
    """Return the items of all imports, of which those that quote the text can be removed.

    Raises:
        ArtifactError: a line of a file is not an item.
    """
    num_kept, removals = 0, list[Removal]()
    for file in items_files(root):
        items = HeldOut.lines(file)
        kept = without(items, sought.is_quoted_by)
        num_kept += len(kept)
        if gone := [item for item in items if item not in kept]:
            num_bytes = sum(len(item.model_dump_json(exclude_defaults=True)) for item in gone)
            removals.append(Removal(num_bytes, partial(write_items, file, kept), len(gone)))
    return SweptStore("imports: items", num_kept, tuple(removals))


@dataclass(frozen=True)
class AffectedVersion:
    """A registered version whose lineage holds the text, or was made of a file that does."""

    version: models.Registered
    aliases: tuple[str, ...]
    holding: tuple[str, ...]  # files of its lineage that hold the text
    removed: tuple[str, ...]  # paths of its lineage that are removed
    was_trained_on: bool


@dataclass(frozen=True)
class Findings:
    """Where a text is, and what is removed."""

    num_words: int
    is_known: bool  # whether it has a tombstone already
    holding: tuple[str, ...]  # files of the present snapshot and splits that hold it
    versions: tuple[AffectedVersion, ...]
    stores: tuple[SweptStore, ...]
    left: tuple[str, ...]  # places that hold it and are not changed

    @property
    def is_anywhere(self) -> bool:
        return bool(self.holding or self.versions or any(store.removals for store in self.stores))


class _Unfinished(record.Record):
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
    if (num_words := len(words_of(text))) < MIN_WORDS:
        raise DataError(
            f"{text.strip()[:60]!r} has {num_words} words, too few to cut out of texts (at least {MIN_WORDS})",
            do="give the whole document: `clozeline forget FILE`",
        )
    with ExitStack() as stack:
        if not is_dry:
            stack.enter_context(held_to_remove(workspace))
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
        self._forgotten = snapshot.with_tombstone(self._root / FORGOTTEN_LOCK, text)
        self._is_known = before == self._forgotten
        self._num_words = len(words_of(text))
        self._lock = own_lock(workspace.root)
        database = database_of(self._address)
        self._has_mlflow = database is None or database.exists()
        self._registered = decisions.every_version(self._address) if self._has_mlflow else []
        self._locks: dict[models.Registered, record.Lock] = {}
        for version, _ in self._registered:
            with suppress(ArtifactError):  # it is gone: nobody can say what the version was made of
                self._locks[version] = lock_of(version, publishing.Publisher(self._address))
        quoting = {str(file.relative_to(self._root)) for file in items_files(self._root) if sought.is_quoted_in(file)}
        deps = [dep for stage in self._lock.stages.values() for dep in stage.deps]
        items = {dep.md5 for dep in deps if dep.md5 and dep.path in quoting}
        self._holding = stored.holding(sought.is_in).union(self._in_outputs(), items)
        unfinished = _Unfinished.read(self._root / _UNFINISHED, absent=_Unfinished())
        self._spread = stored.spread(self._holding, [self._lock, *self._locks.values()]).union(unfinished.objects)

    def findings(self) -> Findings:
        versions = tuple(self._affected())
        runs = {version.run_id for version, _ in self._registered}
        searched = search_files(self._address, self._sought.is_quoted_in, runs) if self._has_mlflow else (None, ())
        in_runs, of_versions = searched
        outs = {self._root / out.path: out.md5 in self._spread and name != _SNAPSHOT for name, out in self._outs()}
        stores = (
            *self._stored.without(self._spread),
            SweptStore.of_paths("workspace: outputs", outs, lambda path: outs[path] and path.exists()),
            items_store(self._root, self._sought),
            *self._in_work(),
            *([in_runs] if in_runs else []),
        )
        copies = [file for file in files_in(self._workspace.work / "registry") if self._sought.is_in(file)]
        of_copies = (f"{file.relative_to(self._root)}: a copy of a registered package" for file in copies)
        left = (*self._in_sources(), *of_copies, *of_versions)
        held = tuple(self._held_of(self._present()))
        return Findings(self._num_words, self._is_known, held, versions, stores, left)

    def carry_out(self, findings: Findings) -> None:
        """First the tombstone, so that the text cannot come back; then the marks, which need what is removed last."""
        snapshot.write(self._root / FORGOTTEN_LOCK, self._forgotten)
        _Unfinished(objects=tuple(sorted(self._spread))).write(self._root / _UNFINISHED)
        for one in findings.versions:
            decisions.mark(one.version, one.removed, self._address, was_trained_on=one.was_trained_on)
        self._rewrite_snapshot()
        sweep(findings.stores)
        (self._root / _UNFINISHED).unlink()

    def _affected(self) -> Iterator[AffectedVersion]:
        for version, aliases in self._registered:
            if version not in self._locks:
                continue
            lock = self._locks[version]
            behind = list(lineage.ancestry(lock, f"dist/{version.name.removeprefix(models.MODEL_PREFIX)}").all())
            removed = tuple(sorted(one.path for one in behind if one.md5 in self._spread))
            if removed:
                raw = [one for one in behind if one.stage == _SNAPSHOT]
                clean = [one for one in behind if one not in raw and one.stage]
                was_trained_on = any(self._held_of(clean))
                yield AffectedVersion(version, aliases, tuple(self._held_of(behind)), removed, was_trained_on)

    def _held_of(self, ancestors: Iterable[lineage.Ancestor]) -> Iterator[str]:
        """Yield the files of these ancestors that hold the text."""
        for one in ancestors:
            if one.md5 in self._holding:
                yield one.path
            for name, md5 in self._stored.files_in(one.md5).items():
                if md5 in self._holding:
                    yield f"{one.path}/{name}"

    def _present(self) -> Iterator[lineage.Ancestor]:
        """Yield the outputs of the stages, and the items of imports."""
        for name, stage in self._lock.stages.items():
            items = [dep for dep in stage.data if dep.path.startswith(f"{ITEMS}/")]
            yield from (lineage.Ancestor(one.path, one.md5 or "", name, ()) for one in (*stage.outs, *items))

    def _outs(self) -> list[tuple[str, record.LockedPath]]:
        return [(name, out) for name, stage in self._lock.stages.items() for out in stage.outs]

    def _in_outputs(self) -> Iterator[str]:
        """Yield the hashes of the outputs in the workspace that hold the text: the cache may have lost them."""
        for _, out in self._outs():
            is_searched = any(out.md5 in place.objects for place in self._stored.places)
            if out.md5 and not is_searched and any(map(self._sought.is_in, files_in(self._root / out.path))):
                yield out.md5

    def _in_work(self) -> Iterator[SweptStore]:
        """Yield what the next run makes again, and the files that quote the text."""
        work = self._workspace.work
        made = [work / name for name in _MADE_OF_TEXT if self._spread and (work / name).exists()]
        yield SweptStore.of_paths("work: kept results and checkpoints", made, lambda _: True)
        folders = [self._root / name for name in ("reports", "plots", "metrics")]
        folders += [one for one in sorted(work.glob("*")) if one.name not in (*_NOT_SEARCHED, *_MADE_OF_TEXT)]
        files = [file for folder in folders for file in files_in(folder)]
        quoting = {self._whole(file) for file in files if self._sought.is_quoted_in(file)}
        yield SweptStore.of_paths("work and reports: files", map(self._whole, files), quoting.__contains__)

    def _whole(self, file: Path) -> Path:
        """Return what has to go with `file`: a search index is useless without one of its files."""
        indexes = self._workspace.work / "search"
        return indexes / file.relative_to(indexes).parts[0] if file.is_relative_to(indexes) else file

    def _in_sources(self) -> Iterator[str]:
        """Yield the files that no stage makes and that hold the text; they are the user's."""
        deps = {dep.path for stage in self._lock.stages.values() for dep in stage.data}
        sources = (path for path in deps if not self._lock.maker_of(path) and not path.startswith(f"{ITEMS}/"))
        for path in sorted(sources):
            for file in files_in(self._root / path):
                if self._sought.is_in(file):
                    yield f"{file.relative_to(self._root) if file.is_relative_to(self._root) else file}: a source"

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
            store = SnapshotStore(beside, earlier, self._forgotten)
            if any(file.records is not None for file in earlier.files):
                files = keep_earlier_records(store)
            else:
                files = tuple(store.keep_earlier(file, file.name) for file in earlier.files)
            rewritten = earlier.manifest.model_copy(update={"files": files, "forgotten": self._forgotten.digest})
            rewritten.write(beside / MANIFEST, exclude_none=True)
        self._stored.replace_output(_SNAPSHOT, folder)
