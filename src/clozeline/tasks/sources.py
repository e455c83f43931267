"""Sources of a task's records: one file, a file for each split, or a hub dataset."""

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Literal

from clozeline.errors import DataError
from clozeline.params import FinetuneParams
from clozeline.params.finetuning import HubParams
from clozeline.records.files.fields import Fields
from clozeline.records.hub import HubKnobs, HubSplit, commit_of, hub_records
from clozeline.tasks.records import Reader, Record, read_records

Part = Literal["train", "validation", "test"]
_LOG = logging.getLogger(__name__)
_KNOBS = HubKnobs(
    dataset="`hub.dataset` of this task",
    every="`hub` and `splits` of this task",
)


def records_of(
    params: FinetuneParams, data: Path, fields: Fields, readers: Mapping[str, Reader] | None = None
) -> Iterator[tuple[Part, Record]]:
    """Yield each record with the split of its file; `train` if the task names no splits.

    Args:
        fields: knob of the task → field name; every record must have these fields.
        readers: readers of this kind of task in addition to the tables, keyed by file suffix.

    Raises:
        DataError: the data cannot be read; names file and line.
        TransientError: the hub did not answer.
    """
    for part, name in given_parts(params).items():
        if params.hub is not None:
            yield from ((part, record) for record in _hub_records(params.hub, name or "train", fields))
        else:
            yield from ((part, record) for record in read_records(_path(data, name), fields, readers))


def first_records(
    params: FinetuneParams, data: Path, fields: Fields, readers: Mapping[str, Reader] | None = None
) -> list[Record]:
    """Return the first record of each file that the task names; arguments and errors as in `records_of`."""
    files = [read_records(_path(data, name), fields, readers) for name in given_parts(params).values()]
    return [record for file in files for record in islice(file, 1)]


def hub_commit(params: FinetuneParams) -> str | None:
    """Return the commit of the hub dataset that `hub` stands for now; None if it is unknown or the task reads files.

    Raises:
        DataError, TransientError: as in `records_of`.
    """
    if params.hub is None:
        return None
    names = (name for name in given_parts(params).values() if name is not None)
    commit = commit_of(_split(params.hub, next(names, "train")))
    if commit and params.hub.revision is None:
        _LOG.warning("%s: the dataset may change: set `hub.revision` of this task to pin a commit", params.hub.dataset)
    return commit


def at_commit(params: FinetuneParams, commit: str | None) -> FinetuneParams:
    """Return the params with `commit` in `hub`, so that every split and every seed reads the same commit."""
    if params.hub is None or commit is None:
        return params
    return params.model_copy(update={"hub": params.hub.model_copy(update={"revision": commit})})


def given_parts(params: FinetuneParams) -> dict[Part, str | None]:
    """Return the given splits, each with its file or hub split; None stands for all of `data`."""
    splits = params.splits
    if splits is None:
        return {"train": None}
    named: dict[Part, str | None] = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    return {part: name for part, name in named.items() if name is not None}


def _path(folder: Path, name: str | None) -> Path:
    """Return the file `name` in `folder`; without a name `folder` itself, which may be a file."""
    if name is None:
        return folder
    if not folder.is_dir():
        raise DataError(
            f"`data: {folder}` is not a folder, but `splits` names the file {name} in it",
            do="correct `data` of this task, or set `splits: null` for one file",
        )
    return folder / name


def _hub_records(hub: HubParams, split: str, fields: Fields) -> Iterator[Record]:
    return (Record(values, place) for place, values in hub_records(_split(hub, split), fields))


def _split(hub: HubParams, split: str) -> HubSplit:
    return HubSplit(hub.dataset, hub.subset, split, hub.revision, _KNOBS)
