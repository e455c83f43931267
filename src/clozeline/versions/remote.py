"""The project's remote: a store of DVC (S3 or any other) from which other machines restore data and stages."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from clozeline.errors import ArtifactError, ParamsError, TransientError
from clozeline.versions.project import open_project
from clozeline.versions.run_cache import fetch_records, push_records

if TYPE_CHECKING:
    from dvc.repo import Repo

NAME: Final = "store"
_CONNECT_SECONDS: Final = 10
_LOG = logging.getLogger(__name__)


def add(root: Path, url: str, endpoint: str | None = None) -> None:
    """Make `url` the remote of the project in `root`, in `.dvc/config`, once a file could be written there.

    `endpoint`: address of an S3 server other than Amazon's.

    Raises:
        ParamsError: DVC has no such kind of store.
        ArtifactError: the store refuses the key, or has no such bucket or folder; nothing was changed.
        TransientError: the store does not answer; nothing was changed.
    """
    settings: dict[str, str | int] = {"url": url}
    if endpoint:
        settings["endpointurl"] = endpoint
    if url.startswith("s3:"):
        settings["connect_timeout"] = _CONNECT_SECONDS
    with _checked_settings(url), open_project(root, settings=_settings(settings)) as repo:
        check(repo)
    with open_project(root) as repo, repo.config.edit("repo") as written:
        written.setdefault("remote", {})[NAME] = settings
        written.setdefault("core", {})["remote"] = NAME


def address(root: Path) -> str | None:
    """Return the address of the remote; None if the project has none."""
    with open_project(root) as repo:
        name = repo.config["core"].get("remote")
        return str(repo.config["remote"][name]["url"]) if name else None


def push(root: Path) -> int:
    """Send every cached object and the run cache that the remote lacks; return how many objects were sent.

    Objects go first, so that the run cache never names a missing output. An incomplete earlier push is completed.
    Without a remote, nothing happens.

    Raises:
        ArtifactError, TransientError: see `add`; or some files were not sent. The next push sends them.
    """
    from dvc_data.hashfile.hash_info import HashInfo

    with open_project(root, waits_for_lock=True) as repo:
        if not has_remote(repo):
            return 0
        check(repo)
        cached = [HashInfo("md5", oid) for oid in repo.cache.local.all()]
        with remote_errors(repo):
            sent = repo.cloud.push(cached)
        if sent.failed:
            raise TransientError(
                "not every file was pushed",
                given=f"{len(sent.failed)} of {len(cached)} objects are not at {_url(repo)}",
                expected="a remote that takes every file",
                do="push again (`clozeline remote push`): only what is missing is sent",
            )
        with remote_errors(repo):
            push_records(repo)
        return len(sent.transferred)


def fetch_runs(root: Path) -> bool:
    """Fetch the run cache, so that stages can be restored; return False if there is no remote or it cannot be used.

    That is only logged: the stages can run without it.
    """
    with open_project(root, waits_for_lock=True) as repo:
        if not has_remote(repo):
            return False
        try:
            check(repo)
            with remote_errors(repo):
                fetch_records(repo)
        except (ArtifactError, TransientError) as error:
            _LOG.warning("nothing is restored from the remote: %s", error)
            return False
        return True


def missing(root: Path) -> int | None:
    """Return how many cached objects the remote lacks; None without a remote. Raises the same errors as `push`."""
    from dvc_data.hashfile.hash_info import HashInfo

    with open_project(root) as repo:
        if not has_remote(repo):
            return None
        check(repo)
        with remote_errors(repo):
            return len(repo.cloud.status([HashInfo("md5", oid) for oid in repo.cache.local.all()]).new)


def has_remote(repo: "Repo") -> bool:
    return bool(repo.config["core"].get("remote"))


def check(repo: "Repo") -> None:
    """Write a small file to the remote and remove it again; raises the errors of `add`."""
    with remote_errors(repo):
        remote = repo.cloud.get_remote()
        file = remote.fs.join(remote.path, f"clozeline-probe-{uuid4().hex}")
        remote.fs.makedirs(remote.path, exist_ok=True)
        remote.fs.pipe_file(file, b"clozeline")
        remote.fs.rm_file(file)


@contextmanager
def remote_errors(repo: "Repo") -> Iterator[None]:
    """Translate the errors of a store; each kind of store has its own.

    Raises:
        ArtifactError: it refuses the key, or has no such bucket or folder.
        TransientError: it does not answer.
    """
    try:
        yield
    except (ArtifactError, TransientError):
        raise
    except Exception as error:  # each client of a store raises its own
        given = f"{_url(repo)}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
            raise ArtifactError(
                "the remote refuses the key",
                given=given,
                expected="a key that may read and write there",
                do="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in as the store's own tool does",
            ) from error
        if isinstance(error, FileNotFoundError):
            raise ArtifactError(
                "the remote does not exist",
                given=given,
                expected="a bucket or folder that exists",
                do="create it, or correct the address: `clozeline remote add URL`",
            ) from error
        raise TransientError(
            "the remote does not answer",
            given=given,
            expected="a store that this machine can reach",
            do="try again later, or correct the address: `clozeline remote add URL [--endpoint URL]`",
        ) from error


@contextmanager
def _checked_settings(url: str) -> Iterator[None]:
    from dvc.config import ConfigError

    try:
        yield
    except ConfigError as error:
        raise ParamsError(
            "DVC knows no such remote",
            given=f"{url}: {error}",
            expected="s3://BUCKET/FOLDER, gs://…, azure://…, ssh://…, or a folder that all machines see",
            do="correct the address",
        ) from error


def _settings(settings: Mapping[str, str | int]) -> dict[str, dict[str, object]]:
    return {"remote": {NAME: dict(settings)}, "core": {"remote": NAME}}


def _url(repo: "Repo") -> str:
    return str(repo.config["remote"][repo.config["core"]["remote"]]["url"])
