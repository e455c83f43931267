"""Lineage of a registered model, read from the evidence stored with it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from clozeline.artifacts.lock import Lock
from clozeline.registry import MODEL_PREFIX, FetchedPackage, Registered, fetch
from clozeline.registry.forgotten import mark_of
from clozeline.registry.packages import find_version
from clozeline.registry.publishing import LOCK, Publisher
from clozeline.workspace import Workspace, tracking_uri

_SNAPSHOT: Final = "snapshot"


@dataclass(frozen=True)
class Ancestor:
    """A file or folder and its inputs."""

    path: str
    md5: str
    """DVC's hash; that of a folder ends in `.dir`."""
    stage: str | None
    """Stage that made it; None for a source."""
    parents: tuple["Ancestor", ...]
    has_copy: bool = False
    """Whether a snapshot holds its bytes as they were read, so that the original may change."""

    def all(self) -> Iterator["Ancestor"]:
        """Yield this ancestor and everything before it, each path once."""
        seen: set[str] = set()
        waiting = [self]
        while waiting:
            ancestor = waiting.pop(0)
            if ancestor.path not in seen:
                seen.add(ancestor.path)
                yield ancestor
                waiting.extend(ancestor.parents)


@dataclass(frozen=True)
class Trace:
    """Version, package and ancestors of one registry URI."""

    uri: str
    version: Registered
    package: FetchedPackage
    commit: str | None
    """Git commit that it was released from; None outside a checkout."""
    origin: Ancestor
    """The package `dist/<model>`."""
    forgotten: frozenset[str] = frozenset()
    """Paths that were removed because a text in them was forgotten."""

    def stored(self) -> list[Ancestor]:
        """Return the ancestors whose bytes are kept: without sources that a snapshot holds, and what was forgotten."""
        return [one for one in self.origin.all() if not one.has_copy and one.path not in self.forgotten]


def trace(uri: str, workspace: Workspace) -> Trace:
    """Return the lineage of `uri`.

    Raises:
        ParamsError, ArtifactError, TransientError: see `registry.fetch`; or the stored dvc.lock is gone.
    """
    publisher = Publisher(tracking_uri(workspace))
    version = find_version(publisher.registry, uri)
    with publisher.evidence(version) as evidence:
        lock = Lock.read(evidence / LOCK)
    return Trace(
        uri=uri,
        version=version,
        package=fetch(f"models:/{version.name}/{version.version}", workspace),
        commit=publisher.commit_of(version),
        origin=ancestry(lock, f"dist/{version.name.removeprefix(MODEL_PREFIX)}"),
        forgotten=mark_of(version, tracking_uri(workspace)).paths,
    )


def ancestry(lock: Lock, path: str, md5: str | None = None) -> Ancestor:
    """Return `path` and its inputs, back to the sources; `md5` is its hash as the reading stage recorded it."""
    maker = lock.maker_of(path)
    if maker is None:
        return Ancestor(path=path, md5=md5 or "", stage=None, parents=())
    name, stage = maker
    own = next((out.md5 for out in stage.outs if out.path == path), None)
    parents = tuple(ancestry(lock, given.path, given.md5) for given in stage.data)
    if name == _SNAPSHOT:
        parents = tuple(replace(parent, has_copy=parent.stage is None) for parent in parents)
    return Ancestor(path=path, md5=md5 or own or "", stage=name, parents=parents)
