"""Records of DVC's run cache, sent to a remote and fetched from it.

DVC itself copies every record each time. That renews all their times, by which DVC finds the newest record of a stage
that has several (a snapshot of a source that it cannot watch), and by which `clozeline gc` spares recent work.
"""

import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from clozeline.versions.stored_files import StoredFile, stored_files

if TYPE_CHECKING:
    from dvc.repo import Repo

_IS_NAME: Final = re.compile(r"[0-9a-f]{2}(/[0-9a-f]{64}){2}").fullmatch
"""Other files are temporary ones of DVC, left by a kill."""
_UNKNOWN: Final = datetime.min.replace(tzinfo=UTC)


def push_records(repo: "Repo") -> None:
    """Send the records that the remote lacks. Objects go before them, so that no record names a missing output."""
    _copy_missing(repo.cache.legacy, _remote_of(repo))


def fetch_records(repo: "Repo") -> None:
    """Fetch the records that the project lacks, with the times at which they were pushed."""
    _copy_missing(_remote_of(repo), repo.cache.legacy, keeps_times=True)


def fetch_no_records(repo: "Repo") -> None:
    """Keep DVC from fetching every record again for each stage that may be restored from the remote."""
    repo.stage_cache.pull = lambda remote: []


def _remote_of(repo: "Repo") -> Any:
    return repo.cloud.get_remote_odb(hash_name="md5-dos2unix")


def _copy_missing(source: Any, target: Any, *, keeps_times: bool = False) -> None:
    from dvc.fs import generic

    present = {_name(file): file.num_bytes for file in _records(target)}
    # A record of another size was cut off by a kill.
    missing = [file for file in _newest(_records(source)) if present.get(_name(file)) != file.num_bytes]
    if not missing:
        return
    places = [target.fs.join(_folder(target), *_name(file).split("/")) for file in missing]
    if not keeps_times:
        for folder in {target.fs.parent(place) for place in places}:
            target.fs.makedirs(folder, exist_ok=True)
    generic.copy(source.fs, [file.path for file in missing], target.fs, places)
    if keeps_times:
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
