"""The DVC repository of a project: the one way to open it."""

import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from clozeline.errors import StorageError

if TYPE_CHECKING:
    from dvc.repo import Repo


def open_project(
    root: Path, *, waits_for_lock: bool = False, settings: Mapping[str, Mapping[str, object]] = MappingProxyType({})
) -> "Repo":
    """Return the project in `root` as a context manager. Outside a git repository DVC works without git.

    `settings` are laid over those of `.dvc/config`.

    Raises:
        dvc.exceptions.DvcException: the project is missing or unreadable.
    """
    from dvc.repo import Repo

    root = root.resolve()
    is_in_git = any((folder / ".git").exists() for folder in (root, *root.parents))
    own = {name: dict(section) for name, section in settings.items()}
    if not is_in_git:
        own.setdefault("core", {})["no_scm"] = True
    repo = Repo(str(root), config=own or None, _wait_for_lock=waits_for_lock)
    _remove_torn_rwlock(repo)
    return repo


def _remove_torn_rwlock(repo: "Repo") -> None:
    """Remove DVC's list of the paths in use if a killed process left it half-written: DVC would refuse every command.

    DVC rewrites the file in place, under a lock that ends with its process. A file that is still torn under that lock
    has no writer.
    """
    from dvc.lock import LockError, make_lock
    from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK

    folder = Path(str(repo.tmp_dir))
    if not _is_torn(folder / RWLOCK_FILE):
        return
    is_linked = bool(repo.config["core"].get("hardlink_lock", False))
    guard = make_lock(str(folder / RWLOCK_LOCK), tmp_dir=str(folder), hardlink_lock=is_linked)
    with contextlib.suppress(LockError), guard:
        if _is_torn(folder / RWLOCK_FILE):
            (folder / RWLOCK_FILE).unlink()


def _is_torn(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except FileNotFoundError:
        return False
    except ValueError:
        return True
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
        raise StorageError(
            "DVC's cache is not writable, but every stage stores its outputs there",
            given=str(error),
            expected=f"a folder that this user may write to: {folder}",
            do="correct its owner or mode, free disk space, or choose another one: `dvc cache dir --local FOLDER`",
        ) from error
