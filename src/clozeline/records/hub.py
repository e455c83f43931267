"""A split of a dataset of the Hugging Face hub, or of a local folder of the same shape, streamed through `datasets`."""

import logging
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozeline.errors import DataError, TransientError
from clozeline.records.fields import Fields, check_fields
from clozeline.records.placed import PlacedRecord

_LOG = logging.getLogger(__name__)
_COMMIT = re.compile("@([0-9a-f]{40})")
"""In the place of a dataset on the hub: `hf://datasets/NAME@COMMIT`."""
_UNLABELLED = -1
"""In datasets of the hub: the class of an item whose class is kept secret."""


@dataclass(frozen=True)
class HubKnobs:
    """What messages call the knobs that name a split."""

    dataset: str
    revision: str
    every: str
    """All that could be wrong when it cannot be read."""


@dataclass(frozen=True)
class HubSplit:
    """What is to be read, and who asked for it."""

    dataset: str
    subset: str | None
    split: str
    revision: str | None
    knobs: HubKnobs

    def __str__(self) -> str:
        return f"{self.dataset}{f' ({self.subset})' if self.subset else ''}, {self.split}"


def hub_records(of: HubSplit, fields: Fields) -> Generator[PlacedRecord, None, None]:
    """Rows in the hub's order; numbers that stand for a class are its name, and None where it is kept secret.

    Raises:
        DataError: there is no such dataset, configuration or split; while reading, too: a row has other fields.
        TransientError: the hub did not answer; raised while reading, too.
    """
    if of.revision is None and not Path(of.dataset).exists():
        _LOG.warning("%s: without %s, the same name may be other text tomorrow", of.dataset, of.knobs.revision)
    with _trouble_named(of):
        import datasets

        rows = datasets.load_dataset(of.dataset, of.subset, split=of.split, revision=of.revision, streaming=True)
    return _rows(rows, of, fields)


def commit_of(of: HubSplit) -> str | None:
    """The commit that `of.revision` stands for on the hub now; None of a folder, and of what a cache alone has.

    Raises:
        DataError: there is no such dataset, configuration or revision.
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
    """Names of the classes where a number, or each of a list of them, stands for one."""
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
            f"{of.dataset}: this dataset cannot be read",
            given=f"subset {of.subset}, split {of.split}, revision {of.revision}: {error}",
            expected="the name of a hub dataset, or a local folder of data files, and a split that it has",
            do=f"correct {of.knobs.every}",
        ) from error
    except OSError as error:
        raise TransientError(
            f"{of.dataset}: the hub did not answer",
            given=str(error),
            expected="an answer",
            do=f"run again later, or give {of.knobs.dataset} as a local folder",
        ) from error
