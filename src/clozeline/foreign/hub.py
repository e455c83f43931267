"""Access to the Hugging Face hub, announced by one log line instead of one per failed attempt."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clozeline.errors import TransientError

_LOG = logging.getLogger(__name__)
_CLIENT = logging.getLogger("huggingface_hub")
_COMMIT = re.compile("[0-9a-f]{40}")
_COMMON = ("config.json", "tokenizer_config.json", "tokenizer.json")
"""Files of which every model or tokenizer has one."""


@contextmanager
def asking_hub(name: str) -> Iterator[None]:
    """Announce calls that look for `name` on the hub, and silence their retries; do nothing if it is a folder.

    Without a network such calls retry for half a minute. The error that they end with reports the failure.
    """
    if Path(name).is_dir() or _CLIENT.level == logging.ERROR:  # an outer call has logged it
        yield
        return
    _LOG.info("%s is not a local folder: asking the Hugging Face hub", name)
    level = _CLIENT.level
    _CLIENT.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _CLIENT.setLevel(level)


def pinned(name: str, revision: str | None) -> str | None:
    """Return the commit that `revision` of a name on the hub stands for now; `revision` itself if it is not on the hub.

    Callers that read the hub in several requests pin the commit first: a branch can move between two requests, and then
    one file is inspected and another is opened.

    Raises:
        TransientError: the hub cannot be reached, or fails.
    """
    if Path(name).is_dir() or _COMMIT.fullmatch(revision or ""):
        return revision
    with asking_hub(name):
        files = (inspected_file(name, file, revision) for file in _COMMON)
        return next((file.parent.name for file in files if file), revision)


def published_file(name: str, file: str, revision: str | None) -> Path | None:
    """Return a file as `fetched_file` does; None also if the hub does not have the name or does not answer."""
    try:
        return fetched_file(name, file, revision)
    except OSError:
        return None


def inspected_file(name: str, file: str, revision: str | None) -> Path | None:
    """Return a file as `published_file` does; but only a hub that answers can say that it lacks the file.

    If one failed request counted as a missing file, that file could be loaded a moment later without inspection. In
    offline mode only cached files can be loaded, so a file missing from the cache needs no inspection.

    Raises:
        TransientError: the hub cannot be reached, or fails.
    """
    if Path(name).is_dir():
        return published_file(name, file, revision)
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return fetched_file(name, file, revision, missing_locally_is_an_error=not constants.HF_HUB_OFFLINE)
    except RepositoryNotFoundError:
        return None  # the caller that opens the name reports that
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        raise TransientError(
            f"{file} of {name} cannot be inspected: the hub does not answer: {' '.join(str(error).split())[:300]}",
            do="try again; without a network, `export HF_HUB_OFFLINE=1` opens what is in the cache",
        ) from error
    except OSError:
        return None


def fetched_file(
    name: str, file: str, revision: str | None, *, missing_locally_is_an_error: bool = False
) -> Path | None:
    """Return a file of a folder, or of a name on the hub, downloaded if necessary; None if the file does not exist.

    `missing_locally_is_an_error`: raise LocalEntryNotFoundError if the hub does not answer and the cache lacks it.

    Raises:
        OSError: the hub does not have the name, or cannot be reached.
    """
    if Path(name).is_dir():
        path = Path(name) / file
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download  # takes 0.5 s, which local folders do not need
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, file, revision=revision))
    except EntryNotFoundError as error:
        if missing_locally_is_an_error and isinstance(error, LocalEntryNotFoundError):
            raise
        return None
    except HFValidationError as error:
        raise FileNotFoundError(str(error)) from error
