"""Texts and labelled records of the caller: written into the folder of a run, or found where they are."""

import json
import os
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from clozeline.errors import DataError
from clozeline.storage.atomic import replacing_file

_FIELD: Final = "text"
_NO_SOURCE: Final = dict.fromkeys(("url", "query", "dataset", "subset", "revision", "label_field"))


def texts_in(texts: Iterable[str] | str | PathLike[str], folder: Path) -> dict[str, Any]:
    """Return the source of a run's text: the given path, or a file in `folder` with the given strings.

    Raises:
        DataError: there are no texts, one of them is no string, or there is no such path.
    """
    if isinstance(texts, str | PathLike):
        return {**_NO_SOURCE, "kind": "files", "path": _path_from(folder, texts)}
    name = "texts.jsonl"
    _write(folder / name, ({_FIELD: _text(number, text)} for number, text in enumerate(texts)), "texts")
    return {**_NO_SOURCE, "kind": "files", "path": name, "text_field": _FIELD}


def labelled_in(data: Iterable[Mapping[str, Any]] | str | PathLike[str], folder: Path, task: str) -> str:
    """Return the path, from `folder`, of the labelled data: the given one, or a file with the given records.

    Raises:
        DataError: there are no records, one of them is no record, or there is no such path.
    """
    if isinstance(data, str | PathLike):
        return _path_from(folder, data)
    name = f"labelled/{task}.jsonl"
    (folder / name).parent.mkdir(exist_ok=True)
    _write(folder / name, (_record(number, record) for number, record in enumerate(data)), "records")
    return name


def _path_from(folder: Path, path: str | PathLike[str]) -> str:
    if not Path(path).exists():
        raise DataError(
            f"there is no file or folder {str(path)[:80]!r} in {Path.cwd()}",
            do="correct the path, or pass the texts themselves: `[text, …]`",
        )
    return os.path.relpath(path, folder)


def _write(path: Path, records: Iterable[Mapping[str, Any]], what: str) -> None:
    num_records = 0
    with replacing_file(path) as file, file.open("w", encoding="utf-8") as stream:
        for record in records:
            stream.write(json.dumps(record) + "\n")
            num_records += 1
        if not num_records:
            raise DataError(f"there are no {what}: the sequence is empty", do="pass some")


def _text(number: int, text: object) -> str:
    if isinstance(text, str):
        return text
    raise DataError(
        f"text {number} must be a string, not {type(text).__name__}: {repr(text)[:60]}",
        do='pass strings: `[record["text"] for record in records]`',
    )


def _record(number: int, record: object) -> Mapping[str, Any]:
    if isinstance(record, Mapping):
        try:
            json.dumps(record)
        except (TypeError, ValueError) as error:
            given: str = str(error)
        else:
            return record
    else:
        given = f"{type(record).__name__}: {repr(record)[:60]}"
    raise DataError(
        f"record {number} must be a dictionary of strings, numbers and lists of them: {given}",
        do='pass records such as `{"text": "…", "label": "…"}`',
    )
