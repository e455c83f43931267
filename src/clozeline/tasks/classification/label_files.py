"""Texts whose label is told by where they are: of each label a file with a text in each line, or a folder with a text
in each file. So are Pang & Lee's sentences published (`rt-polarity.pos`), and IMDB's reviews (`pos/0_9.txt`).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from clozeline.errors import DataError
from clozeline.records.fields import Fields, check_fields
from clozeline.records.formats import format_of
from clozeline.records.streams import lines_of
from clozeline.tasks.records import FOLDER, TABLES, Reader, Record

LabelFiles = Mapping[str, str]
_PLAIN = ".txt"
_MOST_NAMED = 5


def readers(label_files: LabelFiles | None) -> Mapping[str, Reader]:
    """Formats of labelled texts beside the tables, by the file's suffix.

    Args:
        label_files: label → file or folder, in the folder that is read. None: each folder in it is a label.
    """
    read_folder = partial(_read_folder, label_files=label_files)
    if label_files is None:
        return {_PLAIN: _read_plain, FOLDER: read_folder}
    return {**dict.fromkeys((_PLAIN, *TABLES), _refuse_file), FOLDER: read_folder}


def _read_plain(path: Path, fields: Fields) -> Iterator[Record]:
    """JSON Lines, as SciCite's files have them under this suffix."""
    for number, line in enumerate(lines_of(path), start=1):
        if line.lstrip().startswith("{"):
            break
        if line.strip():
            raise DataError(
                f"{path}, line {number}: a text without a label",
                given=line.strip()[:80],
                expected="JSON Lines, if a file with this suffix is to be read by itself",
                do=f"name its folder as `data` of this task and it in `label_files: {{LABEL: {path.name}, …}}`",
            )
    return TABLES[".jsonl"](path, fields)


def _refuse_file(path: Path, fields: Fields) -> Iterator[Record]:
    raise DataError(
        f"{path} is a file, and `label_files` names what is in a folder",
        given=path.name,
        expected="a folder with a file, or a folder, for each label",
        do="name the folder as `data` (or in `splits`) of this task in params.yaml, or set `label_files: null`",
    )


def _read_folder(path: Path, fields: Fields, *, label_files: LabelFiles | None) -> Iterator[Record]:
    text_field, label_field = fields["text_field"], fields["label_field"]
    check_fields((text_field, label_field), fields, path)
    for label, place in _places(path, label_files).items():
        num_texts = 0
        for text, where in _texts_in(place, label):
            num_texts += 1
            yield Record({text_field: text, label_field: label}, where)
        if num_texts == 0:
            raise DataError(
                f"{place} holds no text",
                given="an empty file or folder",
                expected=f"texts of the label `{label}`",
                do="put them there, or name all other labels in `label_files` of this task in params.yaml",
            )


def _places(path: Path, label_files: LabelFiles | None) -> dict[str, Path]:
    """Label → file or folder."""
    if label_files is not None:
        return {label: path / name for label, name in label_files.items()}
    there = sorted(inner for inner in path.iterdir() if not _is_hidden(inner, path))
    folders = {inner.name: inner for inner in there if inner.is_dir()}
    if not folders:
        raise DataError(
            f"{path} is a folder, and nothing says which file of it is what",
            given=", ".join(inner.name for inner in there[:_MOST_NAMED]) or "nothing in it",
            expected="a folder for each label; or a file for each in `label_files`, or for each part in `splits`",
            do="set `label_files: {LABEL: FILE, …}` or `splits: {train: FILE, test: FILE}` of this task in params.yaml",
        )
    return folders


def _texts_in(place: Path, label: str) -> Iterator[tuple[str, str]]:
    """Each text, and where it stands."""
    if place.is_dir():
        for file in sorted(inner for inner in place.rglob("*") if inner.is_file() and not _is_hidden(inner, place)):
            yield "".join(lines_of(file)), str(file)
    elif place.is_file() and format_of(place) not in TABLES:
        for number, line in enumerate(lines_of(place), start=1):
            if line.strip():
                yield line.strip(), f"{place}, line {number}"
    else:
        raise DataError(
            f"{place} is a table" if place.is_file() else f"there is no file {place}",
            given=f"label_files: {{{label}: {place.name}}}",
            expected="a file with a text in each line, or a folder with a text in each file",
            do="correct `label_files` of this task in params.yaml; a table with labels is named as `data`",
        )


def _is_hidden(inner: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in inner.relative_to(folder).parts)
