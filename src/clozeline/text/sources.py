"""The kinds of source, as a table."""

from collections.abc import Callable
from pathlib import Path

from clozeline.errors import DataError
from clozeline.params import SourceParams
from clozeline.text.documents import Source
from clozeline.text.files import open_files
from clozeline.text.hub import open_hub
from clozeline.text.python_docs import open_python_docs
from clozeline.text.wikipedia import open_wikipedia

Opener = Callable[[Path, SourceParams], Source]

_OPENERS: dict[str, Opener] = {
    "python-docs": lambda path, params: open_python_docs(path),
    "files": open_files,
    "wikipedia-xml": open_wikipedia,
    "hub": lambda path, params: open_hub(params),
}


def open_source(path: Path, params: SourceParams) -> Source:
    """Open a source of the kind that `params` names.

    Raises:
        DataError: nothing is at `path`, or what is there is not of that kind.
    """
    if not path.exists():
        raise DataError(
            f"{path}: there is no such file or folder",
            given=f"`source.path`: {params.path}",
            expected="text to learn from",
            do="correct `source.path` (a DVC-tracked path may need `dvc pull` first)",
        )
    return _OPENERS[params.kind](path, params)
