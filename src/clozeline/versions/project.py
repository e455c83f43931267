"""The DVC repository of a project: the one way to open it.

DVC deletes the outputs of a stage before it runs. So a model to start from must not be an output of the project, and
what a stage itself goes on from is in DVC's cache meanwhile.
"""

import contextlib
import json
import logging
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from clozeline.records.record import Lock
from clozeline.system import errors, workspace
from clozeline.system.files import replacing_file

# dvc.repo.Repo, whose import takes a second.
Repo = Any
_LOG = logging.getLogger(__name__)
# By how much the clocks of processes and files may differ.
_CLOCK_SECONDS = 60.0


def git(root: Path, *arguments: str) -> bytes | None:
    """Return what git prints in the folder `root`; None if it fails, or is not installed."""
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True).stdout
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None


def open_project(
    root: Path, *, waits_for_lock: bool = False, settings: Mapping[str, Mapping[str, object]] = MappingProxyType({})
) -> Repo:
    """Return the project in `root` as a context manager. Outside a git repository DVC works without git.

    `settings` are laid over those of `.dvc/config`.

    Raises:
        dvc.exceptions.DvcException: the project is missing or unreadable.
    """
    from dvc import repo as dvc
    from dvc.config import Config
    from dvc_data.hashfile.db import HashFileDB

    root = root.resolve()
    own: dict[str, dict[str, Any]] = {name: dict(section) for name, section in settings.items()}
    if not workspace.Workspace(root).is_in_git:
        own.setdefault("core", {})["no_scm"] = True
    # A fetched file has to be what its name says, whoever may write there.
    remotes = own.setdefault("remote", {})
    for name in [*remotes, *Config(str(root / ".dvc"), validate=False).get("remote", {})]:
        remotes[name] = {**remotes.get(name, {}), "verify": True}
    repo = dvc.Repo(str(root), config=own, _wait_for_lock=waits_for_lock)
    # DVC's own check takes a file of mode 0444 for checked, which it may be in the remote, too.
    repo.cache.local.check = partial(HashFileDB.check, repo.cache.local)
    _forget_ended_processes(repo)
    return repo


def _forget_ended_processes(repo: Repo) -> None:
    """Take ended processes out of DVC's list of the paths in use.

    A killed process leaves its entries, and DVC refuses every command that needs one of these paths once another
    process has got the number. If it was killed while it wrote, half of the list is left, and DVC refuses everything.
    DVC rewrites the file in place, under a lock that ends with its process: under that lock a torn file has no writer.
    """
    from dvc.lock import LockError, make_lock
    from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK

    folder = Path(str(repo.tmp_dir))
    file = folder / RWLOCK_FILE
    if _without_ended(file) is None:
        return
    is_linked = bool(repo.config["core"].get("hardlink_lock", False))
    guard = make_lock(str(folder / RWLOCK_LOCK), tmp_dir=str(folder), hardlink_lock=is_linked)
    with contextlib.suppress(LockError), guard:
        if (lasting := _without_ended(file)) is not None:
            with replacing_file(file) as new:
                new.write_bytes(lasting)


def _without_ended(file: Path) -> bytes | None:
    """Return the list without the entries of ended processes, or of a torn file; None if nothing has to go."""
    try:
        written, content = file.stat().st_mtime, file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        known = json.loads(content)
    except ValueError:
        return b"{}"
    writers = {path: user for path, user in known.get("write", {}).items() if _lives(user, written)}
    readers = {path: [user for user in users if _lives(user, written)] for path, users in known.get("read", {}).items()}
    lasting = {"write": writers, "read": {path: users for path, users in readers.items() if users}}
    is_same = lasting == {"write": known.get("write", {}), "read": known.get("read", {})}
    return None if is_same else json.dumps(lasting).encode()


def _lives(user: Mapping[str, Any], written: float) -> bool:
    """Return whether the process in an entry is alive.

    `written`: time of the list's last change. A process that began clearly later only has the number of one that ended.
    """
    import psutil  # an extra brings it

    try:
        return bool(psutil.Process(int(user["pid"])).create_time() <= written + _CLOCK_SECONDS)
    except psutil.NoSuchProcess:
        return False


def require_writable_cache(root: Path) -> None:
    """Check that DVC's cache is writable. DVC itself notices only at the end of a stage, whose work is then lost.

    Raises:
        StorageError: it is not writable.
    """
    with open_project(root) as repo:
        folder = Path(repo.cache.local.path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise errors.StorageError(
            f"DVC's cache is not writable, but every stage stores its outputs in {folder}: {error}",
            do="correct its owner or mode, free disk space, or choose another one: `dvc cache dir --local FOLDER`",
        ) from error


def refuse_own_outputs(named: Mapping[str, str | None], outs: Iterable[str | Path], root: Path) -> None:
    """Check that no model in `named` lies in one of `outs`; without the folder, its name would be looked up on the hub.

    Args:
        named: key of params.yaml → folder or hub name; null is no model.
        outs: outputs of stages, relative to `root`.

    Raises:
        ParamsError: a model lies in an output.
    """
    folders = [(root / out).resolve() for out in outs]
    for key, name in named.items():
        if name is None:
            continue
        place = (root / name).resolve()
        if any(place.is_relative_to(folder) for folder in folders):
            raise errors.ParamsError(
                f"`{key}: {name}` is an output of this project, which DVC deletes before the stage that writes it runs",
                do=f"set `{key}` to a copy (`cp -r {name} my-start`); the released encoder is `start: champion`",
            )


def own_lock(root: Path) -> Lock:
    """Return the dvc.lock of the working tree, which may have stages that dvc.yaml no longer has; empty before a run.

    Raises:
        ArtifactError: it is damaged.
    """
    file = root / "dvc.lock"
    return Lock.read(file) if file.is_file() else Lock(stages={})


def last_output(root: Path, folder: Path) -> dict[str, Path]:
    """Return name → file of the output `folder` as its stage last made it, also while DVC runs that stage again.

    If the folder is gone, the files come from DVC's cache, by the hash in dvc.lock.

    Empty if the stage never ran here, or if the cache does not hold the output (a clone without `dvc pull`).

    Raises:
        ArtifactError: dvc.lock is damaged.
    """
    if folder.is_dir():
        return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    locked = [out for stage in own_lock(root).stages.values() for out in stage.outs]
    md5 = next((out.md5 for out in locked if out.path == folder.as_posix()), None)
    if md5 is None:
        return {}
    from clozeline.versions.objects import Objects  # imports dvc, which a training from Python does not need

    with Objects.open(root) as objects:
        files = objects.files_of(md5)
    if files is None:
        _LOG.warning(
            "%s of the last run is not in DVC's cache: this run starts anew (`dvc pull %s` before it would bring it)",
            *(folder, folder),
        )
        return {}
    return files
