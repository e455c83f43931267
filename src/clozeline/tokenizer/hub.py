"""Asking the Hugging Face hub: one line says so, instead of those of each attempt that fails."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOG = logging.getLogger(__name__)
_CLIENT = logging.getLogger("huggingface_hub")


@contextmanager
def asking_hub(name: str) -> Iterator[None]:
    """Around calls that look for `name` there if it is no folder: without a network they try for half a minute.

    That they failed is for the error to say that they end with.
    """
    if Path(name).is_dir():
        yield
        return
    _LOG.info("%s is no folder here: asking the Hugging Face hub", name)
    level = _CLIENT.level
    _CLIENT.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _CLIENT.setLevel(level)


def published_file(name: str, file: str, revision: str | None) -> Path | None:
    """Of a folder, or of a name on the hub; None where it is not there, or the hub does not answer."""
    from transformers.utils import cached_file  # seconds: a tokenizer trained here is opened without it

    found = cached_file(
        name,
        file,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)
