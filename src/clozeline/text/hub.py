"""A dataset of the Hugging Face hub, or a local folder of the same shape, streamed through `datasets`."""

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clozeline.errors import DataError, TransientError
from clozeline.params import SourceParams
from clozeline.text.documents import RawUnit, Source
from clozeline.text.records import Fields, document_of

_LOG = logging.getLogger(__name__)
_SPLIT = "train"
_UNLABELLED = -1  # as `datasets` has it


def open_hub(params: SourceParams) -> Source:
    """Stream the `train` split of a dataset: the splits that others test on are left alone.

    Raises:
        DataError: there is no such dataset, configuration or split.
        TransientError: the hub did not answer; raised while reading, too.
    """
    assert params.dataset is not None
    if params.revision is None and not Path(params.dataset).exists():
        _LOG.warning("%s: without preprocess.source.revision, the same name may be other text tomorrow", params.dataset)
    with _trouble_named(params):
        import datasets

        rows = datasets.load_dataset(
            params.dataset, params.subset, split=_SPLIT, revision=params.revision, streaming=True
        )
    return Source(units=_documents(rows, params), total_bytes=0)


@contextmanager
def _trouble_named(params: SourceParams) -> Iterator[None]:
    try:
        yield
    except (DataError, TransientError):
        raise
    except (FileNotFoundError, ValueError) as error:
        raise DataError(
            f"{params.dataset}: this dataset cannot be read",
            given=f"subset {params.subset}, split {_SPLIT}, revision {params.revision}: {error}",
            expected="the name of a hub dataset, or a local folder of data files",
            do="correct preprocess.source.dataset, subset and revision in params.yaml",
        ) from error
    except OSError as error:
        raise TransientError(
            f"{params.dataset}: the hub did not answer",
            given=str(error),
            expected="an answer",
            do="run again later, or give preprocess.source.dataset as a local folder",
        ) from error


def _documents(rows: Any, params: SourceParams) -> Generator[RawUnit, None, None]:
    fields = Fields(params.text_field, params.label_field)
    names = _class_names(rows, params.label_field)
    with _trouble_named(params):
        for number, row in enumerate(rows):
            named = {params.label_field: _named(row[params.label_field], names)} if names else {}
            yield document_of(row | named, fields, str(params.dataset), f"{params.dataset}, {_SPLIT} row {number}")


def _class_names(rows: Any, label_field: str | None) -> list[str]:
    """Names of the classes where the label is a number that stands for one."""
    feature = (rows.features or {}).get(label_field)
    names: list[str] = getattr(feature, "names", [])
    return names


def _named(value: object, names: list[str]) -> object:
    if value == _UNLABELLED:
        return None
    return names[value] if isinstance(value, int) else value
