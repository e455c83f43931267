"""Where a task's records are: one file, a file for each part, or a dataset of the hub."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from clozeline.errors import DataError, TransientError
from clozeline.params import FinetuneParams
from clozeline.params.finetuning import HubParams
from clozeline.tasks.records import Fields, Reader, Record, check_fields, read_records

_LOG = logging.getLogger(__name__)
Part = Literal["train", "validation", "test"]
_UNLABELLED = -1
"""In datasets of the hub: the class of an item whose class is kept secret."""


def records_of(
    params: FinetuneParams, data: Path, fields: Fields, readers: Mapping[str, Reader] | None = None
) -> Iterator[tuple[Part, Record]]:
    """Each record with the part that it was given for; `train` where parts are still to be taken out of it.

    Args:
        fields: knob of the task → the field that it names; every record has them.
        readers: formats of this kind of task beside the tables, by the file's suffix.

    Raises:
        DataError: the data cannot be read; with file and line.
        TransientError: the hub did not answer.
    """
    for part, name in given_parts(params).items():
        if params.hub is not None:
            yield from ((part, record) for record in _hub_records(params.hub, name or "train", fields))
        else:
            path = data if name is None else _file_in(data, name)
            yield from ((part, record) for record in read_records(path, fields, readers))


def given_parts(params: FinetuneParams) -> dict[Part, str | None]:
    """Part → its file or split; None is all of `data`."""
    splits = params.splits
    if splits is None:
        return {"train": None}
    named: dict[Part, str | None] = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    return {part: name for part, name in named.items() if name is not None}


def _file_in(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder, and `splits` names files in it",
            given=f"{folder}, splits {name}",
            expected="a folder with a file for each part",
            do="correct `data` of this task in params.yaml, or set `splits: null` for one file",
        )
    return folder / name


def _hub_records(hub: HubParams, split: str, fields: Fields) -> Iterator[Record]:
    where = f"{hub.dataset}{f' ({hub.subset})' if hub.subset else ''}, {split}"
    if hub.revision is None and not Path(hub.dataset).exists():
        _LOG.warning("%s: without a revision, the same name may be other text tomorrow", hub.dataset)
    with _trouble_named(hub, split):
        import datasets

        rows = datasets.load_dataset(hub.dataset, hub.subset, split=split, revision=hub.revision, streaming=True)
        names = {field: found for field in fields.values() if (found := _class_names(rows, field))}
        for number, row in enumerate(rows):
            check_fields(row, fields, f"{where} row {number}")
            spelled = {field: _spelled(row[field], of_field) for field, of_field in names.items()}
            yield Record(row | spelled, f"{where} row {number}")


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
def _trouble_named(hub: HubParams, split: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, ValueError) as error:
        raise DataError(
            f"{hub.dataset}: this dataset cannot be read",
            given=f"subset {hub.subset}, split {split}, revision {hub.revision}: {error}",
            expected="the name of a hub dataset, or a local folder of data files, and a split that it has",
            do="correct `hub` and `splits` of this task in params.yaml",
        ) from error
    except OSError as error:
        raise TransientError(
            f"{hub.dataset}: the hub did not answer",
            given=str(error),
            expected="an answer",
            do="run again later, or give `hub.dataset` of this task as a local folder",
        ) from error
