"""Table of the kinds of source."""

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
    """Open a source of the kind given in `params`.

    Raises:
        DataError: `path` is missing, or holds another kind of source.
    """
    if not path.exists():
        raise DataError(
            f"{path}: no such file or folder",
            given=f"`source.path`: {params.path}",
            expected="a file or folder with text",
            do="correct `source.path` (a DVC-tracked path may need `dvc pull` first)",
        )
    return _OPENERS[params.kind](path, params)
