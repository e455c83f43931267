"""Where a task's records are: one file, a file for each part, or a dataset of the hub."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from clozeline.errors import DataError
from clozeline.params import FinetuneParams
from clozeline.params.finetuning import HubParams
from clozeline.records.fields import Fields
from clozeline.records.hub import HubKnobs, HubSplit, commit_of, hub_records
from clozeline.tasks.records import Reader, Record, read_records

Part = Literal["train", "validation", "test"]
_KNOBS = HubKnobs(
    dataset="`hub.dataset` of this task",
    revision="`hub.revision` of this task",
    every="`hub` and `splits` of this task",
)


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


def hub_commit(params: FinetuneParams) -> str | None:
    """Of a task on the hub: the commit that its records are read from; None of any other, and where nothing tells it.

    Raises:
        DataError, TransientError: as `records_of`.
    """
    if params.hub is None:
        return None
    names = (name for name in given_parts(params).values() if name is not None)
    return commit_of(_split(params.hub, next(names, "train")))


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
    return (Record(values, place) for place, values in hub_records(_split(hub, split), fields))


def _split(hub: HubParams, split: str) -> HubSplit:
    return HubSplit(hub.dataset, hub.subset, split, hub.revision, _KNOBS)
