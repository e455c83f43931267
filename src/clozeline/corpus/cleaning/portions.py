"""Portions of raw text: a task reads one, and cuts it into batches, so that no process reads all of the text.

A portion is a range of a file of JSON Lines or Parquet, or of a dump, another file as a whole, or several small files.
Files and sizes decide it, never the number of workers. The batches of a portion hold its units in their order, as
pickles: a worker reads what the file holds as it is from there, and other units (decompressed, parsed) from the pickle.

Batches and portions are cut where the content says so: a change leaves the groups before it, and those soon after it,
as they were. How a file is read depends on the kind of source and on the file's name, or else on its first line.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import groupby, pairwise
from pathlib import Path
from typing import TypeVar

from clozeline.cluster.ledger import Done, Item, Ledger
from clozeline.corpus.cleaning import documents, line_formats, wikipedia
from clozeline.params.text import SourceParams
from clozeline.records.reading.files import PARQUET_SUFFIXES, format_of, label_of, matching_files, read_parquet
from clozeline.records.reading.streams import OnBad, compression_of, read_blocks, read_lines, whole
from clozeline.records.snapshot import Snapshot
from clozeline.system.errors import ArtifactError, DataError

Member = TypeVar("Member")

_LEFT_OUT_BY = "`source.pattern`"

_PORTION_BYTES = 16_000_000
_MAX_PORTION_FILES = 1_000
_BATCH_BYTES = 1_000_000
_MAX_BATCH_UNITS = 2_000
_KEY_BYTES = 16


def groups(members: Iterable[tuple[Member, bytes, float]]) -> Iterator[list[tuple[Member, bytes]]]:
    """Yield groups of about equal size; a member comes with its digest and its share of the wanted size.

    From a quarter of the wanted size on, a group ends at each member with a chance that grows with the member; the draw
    is the digest.
    """
    waiting: list[tuple[Member, bytes]] = []
    size = 0.0
    for member, digest, share in members:
        waiting.append((member, digest))
        size += share
        if size >= 2 or (size >= 0.25 and int.from_bytes(digest[:4]) < 2 * share * 2**32):
            yield waiting
            waiting, size = [], 0.0
    if waiting:
        yield waiting


def texts_of(path: Path, params: SourceParams) -> Iterator[str]:
    """Yield the texts of a file or folder as `preprocess` reads them, without cleaning; empty texts are skipped.

    Of a folder these are all files below it that match `params.pattern` and are not hidden.

    Raises:
        DataError: the path is missing, no file matches, or one cannot be read as text.
    """
    if not path.exists():
        raise DataError(
            f"{path}: there is no such file or folder",
            do="correct the path; text is .txt, .jsonl, .csv, .parquet, compressed or not, or a folder of them",
        )
    named = [(file, label_of(file, path)) for file in matching_files(path, params.pattern)]
    files = [documents.RawFile(file, name, name) for file, name in named]
    for unit in opened(files, replace(documents.FileReading.of(params), kind="files")):
        yield from (text for document in unit.documents() if (text := str(whole(document.text)).strip()))


def opened(
    files: Iterable[documents.RawFile], reading: documents.FileReading, shapes: Counter[str] | None = None
) -> Generator[documents.RawUnit, None, None]:
    """Yield the units of files, in their order.

    Args:
        shapes: gets the number of documents of plain text by their unit (line, paragraph, file).

    Raises:
        DataError: a file is damaged, or not of its kind.
    """
    shapes = Counter() if shapes is None else shapes
    for file in files:
        of_kind = _KINDS.get(reading.kind)
        yield from of_kind(file) if of_kind else _format_of(file)(documents.OpenFile(file, reading, shapes))


def is_divisible(file: documents.RawFile, reading: documents.FileReading) -> bool:
    """Return whether a range of the file's bytes can be read: the lines, row groups or pages that begin in it."""
    if reading.kind in _KINDS:
        return reading.kind == "wikipedia-xml" and compression_of(file.path) in (None, "bz2")
    read = _format_of(file)
    return read is _in_rows or (read is _in_blocks and compression_of(file.path) is None)


def _in_rows(of: documents.OpenFile) -> Iterator[documents.RawUnit]:
    rows = read_parquet(of.file.path, of.reading.fields, of.file.start, of.file.end)
    return of.with_bad(partial(of.documents_of, rows))


def _in_blocks(of: documents.OpenFile) -> Iterator[documents.RawUnit]:
    with closing(read_blocks(of.file.path, _LEFT_OUT_BY, of.file.start, of.file.end)) as blocks:
        yield from (line_formats.JsonBlock(block, of) for block in blocks)


def _in_lines(of: documents.OpenFile, reader: line_formats.LineReader | None = None) -> Iterator[documents.RawUnit]:
    """Return the documents of a file read line by line; without a reader, the first line decides the format."""

    def read(on_bad: OnBad) -> Iterator[documents.Document]:
        with closing(read_lines(of.file.path, _LEFT_OUT_BY, on_bad)) as lines:
            chosen, whole = (reader, lines) if reader else line_formats.sniff(lines)
            yield from chosen(whole, of)

    return of.with_bad(read)


_Read = Callable[[documents.OpenFile], Iterator[documents.RawUnit]]
# Reader of each format, by suffix.
_FORMATS: Mapping[str, _Read] = {
    **dict.fromkeys(PARQUET_SUFFIXES, _in_rows),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), _in_blocks),
    ".csv": partial(_in_lines, reader=partial(line_formats.read_separated, delimiter=",")),
    ".tsv": partial(_in_lines, reader=partial(line_formats.read_separated, delimiter="\t")),
}
# Readers of kinds of source whose files have one format.
_KINDS: Mapping[str, Callable[[documents.RawFile], Iterator[documents.RawUnit]]] = {
    "python-docs": documents.docstring_blocks,
    "wikipedia-xml": wikipedia.wiki_pages,
}


def _format_of(file: documents.RawFile) -> _Read:
    return _FORMATS.get(format_of(Path(file.name)), _in_lines)


@dataclass(frozen=True)
class CutBatch:
    """A batch that is cut, and not yet prepared."""

    digest: str  # digest of its units, which does not tell their places
    path: Path
    stored_bytes: int  # its share of the stored bytes of the portion
    lines_later: int  # by how many lines its blocks are later in the file than the portion counts
    raw: tuple[Path, ...]  # files of raw text that have units of the portion as they are
    frees: str | None  # key of the task that is of no use when the batch is prepared: its portion, if that made copies


@dataclass
class ReadText:
    """What is known of the raw text when it is read."""

    # Unit of plain text (line, paragraph, file) → number of documents.
    shapes: Counter[str] = field(default_factory=Counter)
    portions: set[str] = field(default_factory=set)  # keys of the portions that a later run need not read again


def portions_of(
    files: Sequence[documents.RawFile], reading: documents.FileReading
) -> list[tuple[documents.RawFile, ...]]:
    """Cut files into portions, in their order: consecutive files, or one range of a file each."""
    portions: list[tuple[documents.RawFile, ...]] = []
    for is_divided, some in groupby(files, lambda one: one.size_bytes > _PORTION_BYTES and is_divisible(one, reading)):
        if is_divided:
            for file in some:
                ends = [*range(_PORTION_BYTES, file.size_bytes, _PORTION_BYTES), file.size_bytes]
                portions += [(replace(file, start=start, end=end),) for start, end in pairwise([0, *ends])]
        else:
            shares = (
                (file, bytes.fromhex(file.sha256), file.size_bytes / _PORTION_BYTES + 1 / _MAX_PORTION_FILES)
                for file in some
            )
            portions += [tuple(file for file, _ in group) for group in groups(shares)]
    return portions


def cut_batches(
    files: Sequence[documents.RawFile], reading: documents.FileReading, ledger: Ledger, read: ReadText
) -> Iterator[CutBatch]:
    """Yield the batches of files in order; a task cuts each portion. `read` gets what is then known of the text."""
    portions, lines_before = portions_of(files, reading), 0
    items = (_cut_item(number, portion, reading) for number, portion in enumerate(portions))
    for portion, record in zip(portions, ledger.run(items, read=()), strict=True):
        cuts, num_lines, shapes, has_copies = record.facts
        if not portion[0].start:
            lines_before = 0
        read.shapes.update(shapes)
        if not has_copies:
            read.portions.add(record.key)
        total, stored = max(sum(size for _, size in cuts), 1), sum(file.size_bytes for file in portion)
        for number, (digest, size) in enumerate(cuts):
            yield CutBatch(
                digest,
                record.folder / _file_of(number),
                size * stored // total,
                max(lines_before - 1, 0),  # lines of a later range are counted from 2
                tuple(one.path for one in portion) if num_lines else (),
                record.key if has_copies and number == len(cuts) - 1 else None,
            )
        lines_before += num_lines


def _cut_item(number: int, files: tuple[documents.RawFile, ...], reading: documents.FileReading) -> Item:
    # The pickles name the paths.
    told = [(one.sha256, one.start, one.end, one.label, one.quarantines, str(one.path)) for one in files]
    reads = [one.path for one in files]
    return Item(f"portion {number} of the raw text", [told, astuple(reading)], reads, partial(_cut, files, reading))


def _cut(files: Sequence[documents.RawFile], reading: documents.FileReading, folder: Path) -> Done:
    """Read a portion, and write each of its batches into a file; the facts are, for `cut_batches`,
    the batches, the number of lines of JSON Lines, the documents by shape, and whether units are copied.

    Raises:
        DataError: a file is damaged, or not of its kind.
    """
    shapes = Counter[str]()
    cuts: list[tuple[str, int]] = []
    num_lines, has_copies = 0, False
    with closing(opened(files, reading, shapes)) as read:
        for members in groups(map(_member, read)):
            units = [unit for unit, _ in members]
            with (folder / _file_of(len(cuts))).open("wb") as file:
                pickle.dump(units, file, pickle.HIGHEST_PROTOCOL)
            digest = blake2b(b"".join(digest for _, digest in members), digest_size=_KEY_BYTES).hexdigest()
            cuts.append((digest, sum(unit.size_bytes for unit in units)))
            blocks = [unit.block for unit in units if isinstance(unit, line_formats.JsonBlock)]
            num_lines += sum(block.content.count(b"\n") for block in blocks)
            has_copies = has_copies or len(blocks) < len(units) or not all(block.is_stored for block in blocks)
    return Done([cuts, num_lines, shapes, has_copies])


def units_of(batch: CutBatch) -> list[documents.RawUnit]:
    """Return the units of a batch, with their places in the file."""
    units: list[documents.RawUnit] = pickle.loads(batch.path.read_bytes())  # noqa: S301  # our own bytes, of this run or the last
    return [unit.later(batch.lines_later) if isinstance(unit, line_formats.JsonBlock) else unit for unit in units]


def _member(unit: documents.RawUnit) -> tuple[documents.RawUnit, bytes, float]:
    digest = blake2b(unit.identity(), digest_size=_KEY_BYTES).digest()
    return unit, digest, unit.size_bytes / _BATCH_BYTES + 1 / _MAX_BATCH_UNITS


def _file_of(number: int) -> str:
    return f"units-{number:06d}.pickle"


def open_snapshot(folder: Path, params: SourceParams, *, quarantines: bool = False) -> documents.RawText:
    """Open the snapshot in `folder`, whose texts come in the order in which they were first seen.

    `quarantines`: whether a bad record of a file is set aside, instead of stopping the reading.

    Raises:
        ArtifactError: the snapshot is missing, incomplete, or of another source than `params` name.
    """
    snapshot = Snapshot.of_folder(folder)
    if (snapshot.kind, snapshot.place) != (params.kind, params.place):
        raise ArtifactError(
            f"{folder} is a snapshot of {snapshot.place} ({snapshot.kind}), not of {params.place} ({params.kind})",
            do="run stage snapshot again (`dvc repro -f snapshot`), or correct `source.kind`",
        )
    label = {"hub": snapshot.place, "sql": "sql"}.get(snapshot.kind)
    files = tuple(
        documents.RawFile(folder / file.object_name, file.name, label or file.name, quarantines, file.sha256)
        for file in snapshot.files
    )
    return documents.RawText(files, documents.FileReading.of(params), snapshot.raw_bytes)


def names_in_source(folder: Path, params: SourceParams) -> Callable[[str], str]:
    """Return a function that puts the names of the source's files in place of the files of the snapshot in `folder`."""
    root = Path(params.url or params.path)
    seen = set[str]()
    names: dict[str, str] = {}
    for file in Snapshot.of_folder(folder).files:
        path = folder / file.object_name
        # Lines of a part are counted from its beginning.
        part = f" (the part that snapshot {file.snapshot} added)" if file.name in seen else ""
        seen.add(file.name)
        is_root = root.name == file.name
        names[str(path)] = (file.name if params.dataset else str(root if is_root else root / file.name)) + part
        names[path.name] = file.name

    def named(message: str) -> str:
        for ours, theirs in names.items():
            message = message.replace(ours, theirs)
        return message

    return named
