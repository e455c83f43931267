"""One split of a Hugging Face hub dataset, or of a local folder with the same layout, streamed through `datasets`."""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozeline.records.reading.files import Fields, PlacedRecord, check_fields
from clozeline.system.errors import DataError, TransientError

# Finds the commit in the path of a hub dataset, `hf://datasets/NAME@COMMIT`.
_COMMIT = re.compile("@([0-9a-f]{40})")
# Class id that hub datasets use for items without a public label.
_UNLABELLED = -1


@dataclass(frozen=True)
class HubSplit:
    """A split to read, and the names of the knobs that selected it, for messages."""

    dataset: str
    subset: str | None
    split: str
    revision: str | None
    knobs: str

    def __str__(self) -> str:
        return f"{self.dataset}{f' ({self.subset})' if self.subset else ''}, {self.split}"


def hub_records(of: HubSplit, fields: Fields) -> Generator[PlacedRecord, None, None]:
    """Yield rows in the hub's order. Class ids become class names, or None for items without a public label.

    Raises:
        DataError: the dataset, configuration or split does not exist; while reading: a row lacks a field.
        TransientError: the hub did not answer, at the start or while reading.
    """
    with _trouble_named(of):
        import datasets

        rows = datasets.load_dataset(of.dataset, of.subset, split=of.split, revision=of.revision, streaming=True)
    return _rows(rows, of, fields)


def commit_of(of: HubSplit) -> str | None:
    """Return the commit that `of.revision` points to now; None for a local folder or a dataset in the cache only.

    Raises:
        DataError: the dataset, configuration or revision does not exist.
        TransientError: the hub did not answer.
    """
    if Path(of.dataset).exists():
        return None
    with _trouble_named(of):
        import datasets

        place = datasets.load_dataset_builder(of.dataset, of.subset, revision=of.revision).base_path
    found = _COMMIT.search(place or "")
    return found[1] if found else None


def _rows(rows: Any, of: HubSplit, fields: Fields) -> Generator[PlacedRecord, None, None]:
    names = {field: found for field in fields.values() if (found := _class_names(rows, field))}
    with _trouble_named(of):
        for number, row in enumerate(rows):
            place = f"{of} row {number}"
            check_fields(row, fields, place)
            yield place, row | {field: _spelled(row[field], of_field) for field, of_field in names.items()}


def _class_names(rows: Any, field: str) -> list[str]:
    """Class names of a field that holds a class id or a list of class ids."""
    feature = (rows.features or {}).get(field)
    names: list[str] = getattr(getattr(feature, "feature", feature), "names", [])
    return names


def _spelled(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_spelled(inner, names) for inner in value]
    if value == _UNLABELLED:
        return None
    return names[value] if isinstance(value, int) else value


@contextmanager
def _trouble_named(of: HubSplit) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, ValueError) as error:
        raise DataError(
            f"{of.dataset}: cannot read split {of.split} (subset {of.subset}, revision {of.revision}): {error}",
            do=f"correct {of.knobs}",
        ) from error
    except OSError as error:
        raise TransientError(
            f"{of.dataset}: the hub did not answer: {error}", do=f"try again, or name a folder in {of.knobs}"
        ) from error
