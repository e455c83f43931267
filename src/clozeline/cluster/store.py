"""The address of the cluster that spreads the work of a stage, and the store of a ledger.

Nodes that share no folder keep the files of their tasks there. Any file system of fsspec serves.
"""

import errno
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from clozeline.system.errors import ArtifactError, ClozelineError, ParamsError, StorageError, TransientError
from clozeline.system.files import sha256_of, storage_faults_named

_CACHE = "clozeline-store-"
_UNUSED_SECONDS = 86_400.0
# Name of a task's record in the folder of its files.
RECORD = "record.json"
# Settings of file systems: an address where nothing answers is noticed soon.
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "file": {"auto_mkdir": True},
    "s3": {"config_kwargs": {"connect_timeout": 5, "retries": {"max_attempts": 3}}},
}
# Files in one request, as S3 limits them.
_MOST_REMOVED = 1_000
_OF_A_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
VARIABLE = "CLOZELINE_CLUSTER"
# Environment variable with the URL of a store, where nodes have no folder in common.
STORE = "CLOZELINE_CLUSTER_STORE"
# The cluster of which this machine is a node.
AUTO = "auto"
_ADDRESS = re.compile(r"ray://(auto|[^/:\s]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5})/?")
_CONNECT_SECONDS = 5.0
# Variable that Ray reads when it is imported: messages that match are not printed.
_UNSEEN = "RAY_DEDUP_LOGS_SKIP_REGEX"


@dataclass(frozen=True)
class FetchedFile:
    """A file that a worker has at `path` once it is fetched."""

    path: Path
    place: str  # path below the URL of the store
    size_bytes: int
    sha256: str
    task: str  # name of the task that wrote it


@dataclass(frozen=True)
class SharedStore:
    """Files below a URL, which this machine and every node reach."""

    url: str

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> "SharedStore | None":
        """Return the store that the environment names, after a small write; None if it names none.

        Raises:
            ParamsError: no installed package opens the URL, or the bucket does not exist.
            StorageError: nothing can be written there.
            TransientError: it does not answer.
        """
        url = environment.get(STORE, "").strip().rstrip("/")
        if not url:
            return None
        if "://" not in url:
            raise _no_url(url, "a path without a scheme")
        store = cls(url)
        store.check()
        return store

    def check(self) -> None:
        """Write, read and remove a small file. Raises what `of_environment` raises."""
        place, content = f".check.{secrets.token_hex(8)}", secrets.token_bytes(16)
        try:
            self.write(place, content)
        except FileNotFoundError as error:
            raise _no_url(self.url, error) from error
        found = self.read(place)
        self.remove([place])
        if found != content:
            raise StorageError(
                f"{self.url} does not return what was just written to it", do=f"set {STORE} to another bucket or folder"
            )

    def read(self, place: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        with self._trouble_named():
            try:
                content: bytes = self._system.cat_file(self._at(place))
            except FileNotFoundError:
                return None
            return content

    def write(self, place: str, content: bytes) -> None:
        """Write a file, which readers see as a whole."""
        with self._trouble_named(), self._whole(self._at(place)) as target:
            self._system.pipe_file(target, content)

    def put(self, path: Path, place: str) -> None:
        """Copy a local file to the store."""
        with self._trouble_named(), self._whole(self._at(place)) as target:
            self._system.put_file(str(path), target)

    def fetch(self, file: FetchedFile) -> None:
        """Copy a file to its path, unless it is there.

        Raises:
            ArtifactError: it is missing or damaged. What is damaged is removed, so that its task is done again.
            StorageError: the local disk is full.
        """
        with storage_faults_named(file.path):
            if file.path.exists() and _hash_of(file.path.absolute(), file.path.stat().st_mtime_ns) == file.sha256:
                return
            file.path.parent.mkdir(parents=True, exist_ok=True)
            beside = file.path.with_name(f".{file.path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
            try:
                self._copy(file, beside)
                beside.replace(file.path)
            finally:
                beside.unlink(missing_ok=True)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return place → size in bytes of each file below a folder."""
        with self._trouble_named():
            try:
                found = self._system.find(self._at(folder), detail=True)
            except FileNotFoundError:
                return {}
        start = len(self._at("x")) - 1
        return {str(path)[start:]: int(info["size"]) for path, info in found.items()}

    def remove(self, places: Iterable[str]) -> None:
        """Remove files in this order, of which some may be gone; a bucket removes a thousand by one request."""
        waiting = iter(map(self._at, places))
        with self._trouble_named():
            while some := list(islice(waiting, _MOST_REMOVED)):
                try:
                    self._system.rm(some)
                except FileNotFoundError:
                    for path in some:
                        with suppress(FileNotFoundError):
                            self._system.rm_file(path)

    @property
    def _system(self) -> Any:
        return opened(self.url)[0]

    def _at(self, place: str) -> str:
        return f"{opened(self.url)[1]}/{place}"

    def _copy(self, file: FetchedFile, to: Path) -> None:
        where = f"{self.url}/{file.place}"
        try:
            with self._trouble_named():
                self._system.get_file(self._at(file.place), str(to))
        except FileNotFoundError:
            given = "no such file"
        else:
            if (to.stat().st_size, sha := sha256_of(to)) == (file.size_bytes, file.sha256):
                return
            given = f"{to.stat().st_size:,} bytes with sha256 {sha[:16]}…"
        folder = file.place.rpartition("/")[0]
        self.remove([f"{folder}/{RECORD}", file.place])
        raise ArtifactError(
            f"{where} of {file.task} is damaged or missing: node {socket.gethostname()} read {given}, not"
            f" {file.size_bytes:,} bytes with sha256 {file.sha256[:16]}…",
            do=f"run the same command again: its record is removed, so {file.task} is done again",
        )

    @contextmanager
    def _whole(self, target: str) -> Iterator[str]:
        """Yield where to write. An object of a bucket appears as a whole; a file appears so when it is renamed."""
        if "file" not in self._system.protocol:
            yield target
            return
        beside = f"{target}.{secrets.token_hex(4)}.partial"
        with storage_faults_named(Path(target)):
            yield beside
            self._system.mv(beside, target)

    @contextmanager
    def _trouble_named(self) -> Iterator[None]:
        """Translate the errors of the file systems, whose classes come from their own libraries."""
        try:
            yield
        except (ClozelineError, FileNotFoundError):
            raise
        except PermissionError as error:
            raise StorageError(
                f"{self.url} refuses node {socket.gethostname()} to list, read, write or remove files: {error}",
                do="grant these rights; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY before each `ray start`",
            ) from error
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _OF_A_DISK:
                raise  # a local one, named where it is written to
            raise TransientError(
                f"{self.url} does not answer node {socket.gethostname()}: {type(error).__name__}: {error}",
                do=f"check {STORE}, the network, and AWS_ENDPOINT_URL if you set it, then repeat the command",
            ) from error


@lru_cache(maxsize=1 << 16)
def _hash_of(path: Path, changed_ns: int) -> str:
    """Return the sha256 of a file, computed once as long as the file does not change."""
    return sha256_of(path)


@dataclass(frozen=True)
class NodeCache:
    """Folder of a node, with the files of one run under the paths that they have on the machine that sends tasks."""

    run: str

    def path(self) -> Path:
        """Return the folder, which is made; those of runs that did not end are removed a day after their last use."""
        folder = Path(gettempdir()) / f"{_CACHE}{self.run}"
        if not folder.exists():
            for other in folder.parent.glob(f"{_CACHE}*"):
                with suppress(OSError):  # of another user, or removed meanwhile
                    if time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
                        shutil.rmtree(other)
            folder.mkdir(mode=0o700, exist_ok=True)
        os.utime(folder)
        return folder

    def clear(self) -> None:
        shutil.rmtree(self.path(), ignore_errors=True)


@lru_cache(maxsize=8)
def opened(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Raises:
        ParamsError: no installed package opens it.
    """
    scheme = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs

        system, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **_OPTIONS.get(scheme, {}))
    except (ValueError, ImportError) as error:
        raise _no_url(url, error) from error
    return system, str(root).rstrip("/")


def _no_url(url: str, fault: object) -> ParamsError:
    return ParamsError(
        f"{STORE} names no store: {url}: {fault}",
        do=f"set {STORE} to s3://BUCKET/PREFIX or file:///FOLDER; unset it if every node has the project's folder",
    )


def cluster_address() -> str | None:
    """Return HOST:PORT of the head, or `auto`; None if the environment names no cluster.

    Raises:
        ParamsError: `CLOZELINE_CLUSTER` has another form.
    """
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return None
    found = _ADDRESS.fullmatch(given)
    if found is None:
        raise ParamsError(
            f"{VARIABLE} must be ray://HOST:PORT of the head, or ray://auto on one of its nodes, not {given}",
            do=f"correct {VARIABLE} as `ray start --head` prints it, or unset it to work on this machine alone",
        )
    return found[1]


def takes_whole_stages(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether nodes run whole stages. They need the project's folder, so not where a store stands in for it.

    Raises:
        ParamsError: `CLOZELINE_CLUSTER` has another form.
    """
    return cluster_address() is not None and not environment.get(STORE, "").strip()


def reachable_cluster() -> str | None:
    """Return the address of the cluster as `cluster_address` does, once its head answers.

    Ray, if it is imported afterwards, prints nothing of its own: when a node dies, it would write pages of a raylet's
    state to our standard output, where `--json` promises one object. Our own messages name the task and the node.

    Raises:
        ParamsError: `CLOZELINE_CLUSTER` has another form.
        TransientError: nothing answers there.
    """
    address = cluster_address()
    if address is not None and address != AUTO:
        check_reachable(address)
    if address is not None:
        os.environ.setdefault(_UNSEEN, ".")
    return address


def check_reachable(address: str) -> None:
    """Raises:
    TransientError: nothing answers at HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise TransientError(
            f"no cluster answers at {address} ({VARIABLE}): {error}",
            do=f"start it (`ray start --head --port={port}`, see docs/cluster.md), or unset {VARIABLE}",
        ) from error
