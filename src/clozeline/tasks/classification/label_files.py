"""Texts labelled by their location: for each label a file with one text per line, or a folder with one text per file.

Pang & Lee's sentences (`rt-polarity.pos`) and IMDB's reviews (`pos/0_9.txt`) are published this way.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from clozeline.errors import DataError
from clozeline.records.files.fields import Fields, check_fields
from clozeline.records.files.formats import format_of
from clozeline.records.files.streams import lines_of
from clozeline.tasks.records import FOLDER, TABLES, Reader, Record

LabelFiles = Mapping[str, str]
_PLAIN = ".txt"
_MOST_NAMED = 5


def readers(label_files: LabelFiles | None) -> Mapping[str, Reader]:
    """Return the readers of labelled texts in addition to the tables, keyed by file suffix.

    Args:
        label_files: label → file or folder inside the folder that is read; None: each subfolder is a label.
    """
    read_folder = partial(_read_folder, label_files=label_files)
    if label_files is None:
        return {_PLAIN: _read_plain, FOLDER: read_folder}
    return {**dict.fromkeys((_PLAIN, *TABLES), _refuse_file), FOLDER: read_folder}


def _read_plain(path: Path, fields: Fields) -> Iterator[Record]:
    """Read JSON Lines, which SciCite publishes under this suffix."""
    for number, line in enumerate(lines_of(path), start=1):
        if line.lstrip().startswith("{"):
            break
        if line.strip():
            raise DataError(
                f"{path}, line {number}: a text without a label, and no JSON Lines: {line.strip()[:80]}",
                do=f"set `data` of this task to its folder, and `label_files: {{LABEL: {path.name}, …}}`",
            )
    return TABLES[".jsonl"](path, fields)


def _refuse_file(path: Path, fields: Fields) -> Iterator[Record]:
    raise DataError(
        f"{path} is a file, but `label_files` needs a folder with a file or a folder for each label",
        do="set `data` (or `splits`) of this task to the folder, or set `label_files: null`",
    )


def _read_folder(path: Path, fields: Fields, *, label_files: LabelFiles | None) -> Iterator[Record]:
    text_field, label_field = fields["text_field"], fields["label_field"]
    check_fields((text_field, label_field), fields, path)
    places = _places(path, label_files)
    for label, place in places.items():
        _check(place, label)
    for label, place in places.items():
        num_texts = 0
        for text, where in _texts_in(place):
            num_texts += 1
            yield Record({text_field: text, label_field: label}, where)
        if num_texts == 0:
            raise DataError(
                f"{place} holds no text of the label `{label}`",
                do="add texts, or list only the other labels in `label_files` of this task",
            )


def _places(path: Path, label_files: LabelFiles | None) -> dict[str, Path]:
    """Return the file or folder of each label."""
    if label_files is not None:
        return {label: path / name for label, name in label_files.items()}
    there = sorted(inner for inner in path.iterdir() if not _is_hidden(inner, path))
    folders = {inner.name: inner for inner in there if inner.is_dir()}
    if not folders:
        raise DataError(
            f"{path}: neither folders, `label_files` nor `splits` tell the labels",
            given=", ".join(inner.name for inner in there[:_MOST_NAMED]) or "an empty folder",
            do="set `label_files: {LABEL: FILE, …}` or `splits: {train: FILE, test: FILE}` of this task",
        )
    return folders


def _texts_in(place: Path) -> Iterator[tuple[str, str]]:
    """Yield each text with its location."""
    if place.is_dir():
        for file in sorted(inner for inner in place.rglob("*") if inner.is_file() and not _is_hidden(inner, place)):
            yield "".join(lines_of(file)), str(file)
        return
    for number, line in enumerate(lines_of(place), start=1):
        if line.strip():
            yield line.strip(), f"{place}, line {number}"


def _check(place: Path, label: str) -> None:
    """Check the file or folder of a label. The caller checks every label before it reads texts."""
    if not place.is_dir() and not (place.is_file() and format_of(place) not in TABLES):
        raise DataError(
            f"`label_files: {{{label}: {place.name}}}` names {'a table' if place.is_file() else 'no file'}: {place}",
            do="name a file of lines or a folder of texts; for a table, set `data: FILE` and `label_files: null`",
        )


def _is_hidden(inner: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in inner.relative_to(folder).parts)
