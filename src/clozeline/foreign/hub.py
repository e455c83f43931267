"""Access to the Hugging Face hub, announced by one log line instead of one per failed attempt."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOG = logging.getLogger(__name__)
_CLIENT = logging.getLogger("huggingface_hub")


@contextmanager
def asking_hub(name: str) -> Iterator[None]:
    """Announce calls that look for `name` on the hub, and silence their retries; do nothing if it is a folder.

    Without a network such calls retry for half a minute. The error that they end with reports the failure.
    """
    if Path(name).is_dir():
        yield
        return
    _LOG.info("%s is not a local folder: asking the Hugging Face hub", name)
    level = _CLIENT.level
    _CLIENT.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _CLIENT.setLevel(level)


def published_file(name: str, file: str, revision: str | None) -> Path | None:
    """Return a file as `fetched_file` does; None also if the hub does not have the name or does not answer."""
    try:
        return fetched_file(name, file, revision)
    except OSError:
        return None


def fetched_file(name: str, file: str, revision: str | None) -> Path | None:
    """Return a file of a folder, or of a name on the hub, downloaded if necessary; None if the file does not exist.

    Raises:
        OSError: the hub does not have the name, or cannot be reached.
    """
    if Path(name).is_dir():
        path = Path(name) / file
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download  # takes 0.5 s, which local folders do not need
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError

    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except EntryNotFoundError:
        return None
    except HFValidationError as error:
        raise FileNotFoundError(str(error)) from error
