"""The project's remote: a store of DVC (S3 or any other) from which other machines restore data and stages.

Files of a cache or remote are read as its file system lists them, folders as DVC lists their files. Records of DVC's
run cache are sent to the remote and fetched from it. DVC itself copies every record each time. That renews all their
times, by which DVC finds the newest record of a stage that has several (a snapshot of a source that it cannot watch),
and by which `clozeline gc` spares recent work.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, TypeAdapter, ValidationError

from clozeline.system.errors import ArtifactError, ParamsError, TransientError
from clozeline.versions.project import Repo, open_project

_LOG = logging.getLogger(__name__)


# End of the name of an object that is the list of a folder's files; before it is the md5 of the list.
FOLDER = ".dir"
# Keys under which the file systems of fsspec give the time at which a file was written.
_TIMES = ("mtime", "LastModified", "last_modified", "updated")

# Other files are temporary ones of DVC, left by a kill.
_IS_NAME = re.compile(r"[0-9a-f]{2}(/[0-9a-f]{64}){2}").fullmatch
_UNKNOWN = datetime.min.replace(tzinfo=UTC)

NAME = "store"
_CONNECT_SECONDS = 10


class _Listed(BaseModel):
    relpath: str
    md5: str


# Content of the object that DVC keeps for a folder.
_FOLDER_LIST = TypeAdapter(list[_Listed])
_TIME = TypeAdapter(datetime)


def is_folder(oid: str) -> bool:
    """Whether an object is the list of a folder's files. Its name tells; metrics, for example, are JSON files, too."""
    return oid.endswith(FOLDER)


def listed_files(content: bytes) -> dict[str, str]:
    """Return name → hash of the files in a folder, from the content of its object.

    Raises:
        ValueError: it is not a list of files.
    """
    return {file.relpath: file.md5 for file in _FOLDER_LIST.validate_json(content)}


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a cache or remote."""

    path: str
    num_bytes: int
    written: datetime | None  # None if the file system does not say

    def is_older_than(self, before: datetime) -> bool:
        """Whether the file was written before `before`; False if that is not known."""
        return self.written is not None and self.written < before


def stored_files(database: Any, folder: str) -> list[StoredFile]:
    """Return every file below `folder` of an object database of DVC; none if the folder is missing."""
    fs = database.fs.fs
    fs.invalidate_cache()
    try:
        found = fs.find(folder, detail=True)
        # The local file system of DVC gives the paths alone.
        infos = found if isinstance(found, dict) else {path: fs.info(path) for path in found}
    except FileNotFoundError:
        return []
    return [StoredFile(path, int(info.get("size") or 0), _written(info)) for path, info in infos.items()]


def _written(info: Mapping[str, Any]) -> datetime | None:
    """Return the time, which a file system gives as a number, a text or a datetime; None if it gives none."""
    try:
        written = _TIME.validate_python(next((info[key] for key in _TIMES if key in info), None))
    except ValidationError:
        return None
    return written if written.tzinfo else written.replace(tzinfo=UTC)


def fetch_no_records(repo: Repo) -> None:
    """Keep DVC from fetching every record again for each stage that may be restored from the remote."""
    repo.stage_cache.pull = lambda remote: []


def _copy_records(repo: Repo, *, to_remote: bool) -> None:
    """Send the records that the remote lacks; or fetch those that the project lacks, with the times of their push."""
    from dvc.fs import generic

    source, target = repo.cache.legacy, repo.cloud.get_remote_odb(hash_name="md5-dos2unix")
    if not to_remote:
        source, target = target, source
    present = {_name(file): file.num_bytes for file in _records(target)}
    # A record of another size was cut off by a kill.
    missing = [file for file in _newest(_records(source)) if present.get(_name(file)) != file.num_bytes]
    if not missing:
        return
    places = [target.fs.join(_folder(target), *_name(file).split("/")) for file in missing]
    if to_remote:
        for folder in {target.fs.parent(place) for place in places}:
            target.fs.makedirs(folder, exist_ok=True)
    generic.copy(source.fs, [file.path for file in missing], target.fs, places)
    if to_remote:
        return
    for file, place in zip(missing, places, strict=True):
        if file.written is not None:
            os.utime(place, (file.written.timestamp(),) * 2)


def _records(database: Any) -> list[StoredFile]:
    return [file for file in stored_files(database, _folder(database)) if _IS_NAME(_name(file))]


def _folder(database: Any) -> str:
    return str(database.fs.join(database.path, "runs"))


def _name(record: StoredFile) -> str:
    """Return `xx/KEY/VALUE`: hash of command, dependencies and params, then hash of the whole record."""
    return "/".join(PurePosixPath(record.path.replace(os.sep, "/")).parts[-3:])


def _newest(records: Iterable[StoredFile]) -> list[StoredFile]:
    """Return the newest record of each key: DVC restores from no other."""
    newest: dict[str, StoredFile] = {}
    for record in records:
        key = PurePosixPath(_name(record)).parent.name
        if key not in newest or (record.written or _UNKNOWN) > (newest[key].written or _UNKNOWN):
            newest[key] = record
    return list(newest.values())


def add(root: Path, url: str, endpoint: str | None = None) -> None:
    """Make `url` the remote of the project in `root`, in `.dvc/config`, once a file could be written there.

    `endpoint`: address of an S3 server other than Amazon's.

    Raises:
        ParamsError: DVC has no such kind of store.
        ArtifactError: the store refuses the key, or has no such bucket or folder; nothing was changed.
        TransientError: the store does not answer; nothing was changed.
    """
    from dvc.config import ConfigError

    settings: dict[str, str | int] = {"url": url}
    if endpoint:
        settings["endpointurl"] = endpoint
    if url.startswith("s3:"):
        settings["connect_timeout"] = _CONNECT_SECONDS
    laid_over: Mapping[str, Mapping[str, object]] = {"remote": {NAME: settings}, "core": {"remote": NAME}}
    try:
        with open_project(root, settings=laid_over) as repo:
            check(repo)
    except ConfigError as error:
        raise ParamsError(
            f"DVC knows no such remote: {url}: {error}",
            do="name s3://BUCKET/FOLDER, gs://…, azure://…, ssh://…, or a folder that all machines see",
        ) from error
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
                f"not every file was pushed: {len(sent.failed)} of {len(cached)} objects are not at {_url(repo)}",
                do="push again (`clozeline remote push`): only what is missing is sent",
            )
        with remote_errors(repo):
            _copy_records(repo, to_remote=True)  # after the objects, so that no record names a missing output
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
                _copy_records(repo, to_remote=False)
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


def has_remote(repo: Repo) -> bool:
    return bool(repo.config["core"].get("remote"))


def check(repo: Repo) -> None:
    """Write a small file to the remote and remove it again; raises the errors of `add`."""
    with remote_errors(repo):
        remote = repo.cloud.get_remote()
        file = remote.fs.join(remote.path, f"clozeline-probe-{uuid4().hex}")
        remote.fs.makedirs(remote.path, exist_ok=True)
        remote.fs.pipe_file(file, b"clozeline")
        remote.fs.rm_file(file)


@contextmanager
def remote_errors(repo: Repo) -> Iterator[None]:
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
        told = f"{_url(repo)}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
            raise ArtifactError(
                f"the remote refuses the key: {told}",
                do="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in as the store's own tool does",
            ) from error
        if isinstance(error, FileNotFoundError):
            raise ArtifactError(
                f"the remote does not exist: {told}", do="create it, or correct the address: `clozeline remote add URL`"
            ) from error
        raise TransientError(
            f"the remote does not answer: {told}",
            do="try again later, or correct the address: `clozeline remote add URL [--endpoint URL]`",
        ) from error


def _url(repo: Repo) -> str:
    return str(repo.config["remote"][repo.config["core"]["remote"]]["url"])
