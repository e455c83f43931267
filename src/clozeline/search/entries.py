"""Searchable entries: the documented functions, classes and modules of the clean text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from clozeline.errors import ArtifactError
from clozeline.tasks.similarity.summaries import parted, without_name

_PARTS = ("train.parquet", "validation.parquet", "holdout.parquet")
_COLUMNS = ["source", "title", "text"]


@dataclass(frozen=True, slots=True)
class Entry:
    library: str
    name: str
    """Qualified name, such as torch.nn.Linear.forward."""
    summary: str
    """First sentence of its docstring."""


def parts_of(clean: Path) -> list[Path]:
    """Return the files of the clean text.

    Raises:
        ArtifactError: a file is missing.
    """
    files = [clean / name for name in _PARTS]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise ArtifactError(
            f"{clean} has no clean text to search in",
            given=f"no {', '.join(missing)}",
            expected="the output of stage preprocess",
            do="run `dvc repro preprocess` (or `make run`)",
        )
    return files


def entries_of(clean: Path) -> Iterator[tuple[Entry, str]]:
    """Yield each entry with its searchable text: its docstring, with its own name replaced.

    Entries are sorted by library and name, so that equal scores are shown in that order.

    Raises:
        ArtifactError: a file is missing, or the text has no titles, so it does not consist of docstrings.
    """
    found = []
    for file in parts_of(clean):
        table = pq.read_table(file, columns=_COLUMNS)
        found += list(zip(*(table.column(name).to_pylist() for name in _COLUMNS), strict=True))
    found = sorted((library, title, text) for library, title, text in found if title)
    if not found:
        raise ArtifactError(
            f"{clean} has no functions to search for",
            given="texts without titles",
            expected="docstrings, each with its qualified name",
            do="set the source's `kind: python-docs`, and run `dvc repro`",
        )
    for library, title, text in found:
        docstring = parted(text)
        told = without_name(f"{docstring.summary} {docstring.description}", title)
        yield Entry(library, title, docstring.summary), told
