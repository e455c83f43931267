"""Searchable entries: the documented functions, classes and modules of the clean text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clozeline.artifacts.preprocess import clean_text
from clozeline.errors import ArtifactError
from clozeline.tasks.similarity.summaries import parted, without_name

_COLUMNS = (clean_text.SOURCE, clean_text.TITLE, clean_text.TEXT)


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
    files = [clean_text.file_of(clean, split) for split in clean_text.SPLITS]
    for file in files:
        clean_text.num_rows(file, *_COLUMNS)
    return files


def entries_of(clean: Path) -> Iterator[tuple[Entry, str]]:
    """Yield each entry with its searchable text: its docstring, with its own name replaced.

    Entries are sorted by library and name, so that equal scores are shown in that order.

    Raises:
        ArtifactError: a file is missing, or the text has no titles, so it does not consist of docstrings.
    """
    found = sorted(
        (library, title, text)
        for file in parts_of(clean)
        for columns in clean_text.columns_of(file, *_COLUMNS)
        for library, title, text in zip(*(column.to_pylist() for column in columns), strict=True)
        if title
    )
    if not found:
        raise ArtifactError(
            f"{clean} has no functions to search for",
            given="texts without titles",
            expected="docstrings, each with its qualified name",
            do="set the source's `kind: python-docs`, and run `dvc repro`",
        )
    for library, title, text in found:
        docstring = parted(text)
        content = without_name(f"{docstring.summary} {docstring.description}", title)
        yield Entry(library, title, docstring.summary), content
