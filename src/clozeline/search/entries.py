"""What can be found: the documented functions, classes and modules of the clean text."""

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
    """Qualified, such as torch.nn.Linear.forward."""
    summary: str
    """The first sentence of its docstring."""


def parts_of(clean: Path) -> list[Path]:
    """The files of the clean text.

    Raises:
        ArtifactError: one is missing.
    """
    files = [clean / name for name in _PARTS]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise ArtifactError(
            f"{clean} has no clean text to search in",
            given=f"no {', '.join(missing)}",
            expected="what stage preprocess writes",
            do="run `dvc repro preprocess` (or `make run`)",
        )
    return files


def entries_of(clean: Path) -> Iterator[tuple[Entry, str]]:
    """Each with the text that it is found by: all of its docstring, in which it is not called by its name. In the order
    of libraries and names, so that equal scores are shown in that order.

    Raises:
        ArtifactError: a file is missing, or the text has no titles: it is not of docstrings.
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
            do="set `preprocess.source.kind: python-docs` in params.yaml, and run `dvc repro`",
        )
    for library, title, text in found:
        docstring = parted(text)
        told = without_name(f"{docstring.summary} {docstring.description}", title)
        yield Entry(library, title, docstring.summary), told
