"""Table of the kinds of source: how the files of a snapshot are read."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from clozeline.artifacts.snapshot.manifest import Snapshot
from clozeline.errors import ArtifactError
from clozeline.params import SourceParams
from clozeline.text.docstrings import read_docstrings
from clozeline.text.documents import Source
from clozeline.text.files import RawFile, read_files
from clozeline.text.wikipedia import read_dumps

Opener = Callable[[Sequence[RawFile], SourceParams], Source]

_OPENERS: dict[str, Opener] = {
    "python-docs": read_docstrings,
    "files": read_files,
    "wikipedia-xml": read_dumps,
    "hub": read_files,
    "sql": read_files,
}


def open_snapshot(folder: Path, params: SourceParams, *, quarantines: bool = False) -> Source:
    """Open the snapshot in `folder`, whose texts come in the order in which they were first seen.

    `quarantines`: whether a bad record of a file is set aside, instead of stopping the reading.

    Raises:
        ArtifactError: the snapshot is missing, incomplete, or of another source than `params` name.
    """
    snapshot = Snapshot.read(folder)
    if (snapshot.kind, snapshot.place) != (params.kind, params.place):
        raise ArtifactError(
            f"{folder} is a snapshot of another source",
            given=f"{snapshot.place} (`source.kind`: {snapshot.kind})",
            expected=f"{params.place} (kind {params.kind})",
            do="run stage snapshot again (`dvc repro -f snapshot`), or correct `source.kind`",
        )
    label = {"hub": snapshot.place, "sql": "sql"}.get(snapshot.kind)
    files = [RawFile(folder / file.object_name, file.name, label or file.name, quarantines) for file in snapshot.files]
    return replace(_OPENERS[snapshot.kind](files, params), raw_bytes=snapshot.raw_bytes)


def names_in_source(folder: Path, params: SourceParams) -> Callable[[str], str]:
    """Return a function that puts the names of the source's files in place of the files of the snapshot in `folder`."""
    root = Path(params.url or params.path)
    seen = set[str]()
    names: dict[str, str] = {}
    for file in Snapshot.read(folder).files:
        path = folder / file.object_name
        # Lines of a part are counted from its beginning.
        part = f" (the part that snapshot {file.snapshot} added)" if file.name in seen else ""
        seen.add(file.name)
        names[str(path)] = (file.name if params.dataset else _place_of(root, file.name)) + part
        names[path.name] = file.name

    def named(message: str) -> str:
        for ours, theirs in names.items():
            message = message.replace(ours, theirs)
        return message

    return named


def _place_of(root: Path, name: str) -> str:
    return str(root) if root.name == name else f"{root}/{name}"
