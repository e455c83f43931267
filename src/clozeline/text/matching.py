"""Files of a folder that a glob pattern selects."""

from pathlib import Path

from clozeline.errors import DataError


def matching_files(path: Path, pattern: str) -> list[Path]:
    """Return the file itself, or the matching files below a folder that are not hidden, in the order of their names.

    Raises:
        DataError: no file matches.
    """
    if path.is_file():
        return [path]
    files = [file for file in path.glob(pattern) if file.is_file() and not is_hidden(label_of(file, path))]
    if not files:
        raise no_match(str(path), pattern, sorted(entry.name for entry in path.iterdir()))
    return sorted(files, key=lambda file: label_of(file, path))


def label_of(file: Path, source: Path) -> str:
    """Return the file's name within the source, so that the label does not depend on the location of the source."""
    return file.name if file == source else file.relative_to(source).as_posix()


def is_hidden(label: str) -> bool:
    return any(part.startswith(".") for part in label.split("/"))


def no_match(place: str, pattern: str, names: list[str]) -> DataError:
    """Return the error for a folder with the entries `names`, none of which matches."""
    some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "nothing"
    return DataError(
        f"{place}: no file matches {pattern}; the folder holds {some}", do="correct `source.path` or `source.pattern`"
    )
