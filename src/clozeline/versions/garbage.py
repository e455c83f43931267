"""Objects and runs of DVC's cache and remote that are no longer needed.

DVC's own `gc` goes by git alone: it would delete what a released version needs, ignores the run cache and knows no age.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo, lock_repo
from dvc.scm import NoSCM

from clozeline.artifacts.lock import Lock
from clozeline.errors import ParamsError
from clozeline.storage.sweep import Store
from clozeline.versions.places import Place, files_in, places_of
from clozeline.versions.project import open_project
from clozeline.versions.remote import has_remote, remote_errors


@contextmanager
def dvc_stores(root: Path, locks: Iterable[Lock], before: datetime, *, shared: bool) -> Iterator[tuple[Store, ...]]:
    """Yield the stores of the project in `root`, while DVC's lock is held: its cache and, with `shared`, its remote.

    Kept are: every hash in `locks`, in the working tree, and in all branches, tags, stashes and experiments of git;
    everything that was written since `before`, with the outputs of such runs; and the files in each folder that is
    kept. A cache outside the project counts as shared.

    Raises:
        ParamsError: a branch or tag has stages or data that DVC cannot read.
        ArtifactError: the list of files of a folder that is kept is damaged; or see `remote.add`.
        TransientError: the remote does not answer.
    """
    with open_project(root, waits_for_lock=True) as repo, lock_repo(repo):
        needed = {path.md5 for lock in locks for stage in lock.stages.values() for path in (*stage.deps, *stage.outs)}
        needed |= _recorded_in_git(repo)
        is_own = Path(repo.cache.local.path).resolve().is_relative_to(Path(repo.root_dir).resolve())
        places = places_of(repo, with_cache=shared or is_own, with_remote=shared)
        with remote_errors(repo) if shared and has_remote(repo) else nullcontext():
            stores = _stores(places, needed, before)
        yield stores


def _stores(places: Sequence[Place], needed: set[str | None], before: datetime) -> tuple[Store, ...]:
    """Return the stores of all places. An object that is recent in one place is kept in all."""
    roots = {oid for oid in needed if oid}.union(*(place.young(before) for place in places))
    kept = roots.union(*(files_in(oid, places).values() for oid in roots))
    return tuple(store for place in places for store in place.stores(kept, before))


def _recorded_in_git(repo: Repo) -> set[str]:
    """Return the hashes of the working tree; if the project is in git, also of all its branches, tags, stashes and
    experiments, and of HEAD.

    The branches of other clones count as far as they were fetched.

    Raises:
        ParamsError: DVC cannot read one of them.
    """
    refs: list[str] = []
    if not isinstance(repo.scm, NoSCM):
        refs = [ref for ref in repo.scm.iter_refs("refs/") if not ref.endswith("/HEAD")]
        refs += [*(["HEAD"] if refs else []), *(entry.new_sha.decode() for entry in repo.scm.stash)]
    found: set[str] = set()
    revision = "the working tree"
    try:
        for name in repo.brancher(refs):
            revision = name or revision
            hashes = (item.hash_info.value for item in (*repo.index.outs, *repo.index.deps))
            found.update(value for value in hashes if isinstance(value, str))  # that of params is a mapping
    except DvcException as error:
        raise ParamsError(
            "DVC cannot read what git records, so the files that it needs are not known",
            given=f"{revision}: {error}",
            expected="branches and tags whose dvc.yaml, dvc.lock and .dvc files DVC can read",
            do="correct or delete that branch or tag; nothing was removed",
        ) from error
    return found
