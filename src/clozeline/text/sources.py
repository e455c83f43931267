"""The files of a snapshot as raw text, and their names in the source."""

from collections.abc import Callable
from pathlib import Path

from clozeline.artifacts.snapshot.manifest import Snapshot
from clozeline.errors import ArtifactError
from clozeline.params import SourceParams
from clozeline.text.raw_files import RawFile, RawText, Reading


def open_snapshot(folder: Path, params: SourceParams, *, quarantines: bool = False) -> RawText:
    """Open the snapshot in `folder`, whose texts come in the order in which they were first seen.

    `quarantines`: whether a bad record of a file is set aside, instead of stopping the reading.

    Raises:
        ArtifactError: the snapshot is missing, incomplete, or of another source than `params` name.
    """
    snapshot = Snapshot.read(folder)
    if (snapshot.kind, snapshot.place) != (params.kind, params.place):
        raise ArtifactError(
            f"{folder} is a snapshot of another source: of {snapshot.place} (kind {snapshot.kind}), not of"
            f" {params.place} ({params.kind})",
            do="run stage snapshot again (`dvc repro -f snapshot`), or correct `source.kind`",
        )
    label = {"hub": snapshot.place, "sql": "sql"}.get(snapshot.kind)
    files = tuple(
        RawFile(folder / file.object_name, file.name, label or file.name, quarantines, file.sha256)
        for file in snapshot.files
    )
    return RawText(files, Reading.of(params), snapshot.raw_bytes)


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
