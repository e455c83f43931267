"""Snapshots of remote sources: rows that a SQL query returns, and files at a URL.

A URL is a bucket, a prefix in a bucket, or a file on a web server.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from re import compile as compiled
from typing import Any

import fsspec
import sqlalchemy
from fsspec.utils import glob_translate
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError

from clozeline.corpus.sources.store import SnapshotStore, keep_records, line_of, text_fields
from clozeline.params.text import SourceParams
from clozeline.records.reading.files import check_fields, is_hidden, no_match
from clozeline.records.snapshot import SnapshotFile
from clozeline.system import errors, progress

# Environment variable with the password of the database.
PASSWORD = "CLOZELINE_SOURCE_PASSWORD"
# Isolation level that shows one state of the database to a whole transaction, by dialect.
_ISOLATION: Mapping[str, str] = {
    "postgresql": "REPEATABLE READ",
    "mysql": "REPEATABLE READ",
    "mariadb": "REPEATABLE READ",
}
_ROWS_AT_A_TIME = 1_000

# Environment variable with the header `Authorization` for https://. S3 takes its keys from `AWS_…`.
AUTHORIZATION = "CLOZELINE_SOURCE_AUTHORIZATION"
_REFUSED = (401, 403)
_NOT_FOUND = (404, 410)


def keep_rows(params: SourceParams, store: SnapshotStore) -> tuple[SnapshotFile, ...]:
    """Keep text and label of every row, all as of one moment.

    Raises:
        DataError: the query cannot be run, returns no rows or lacks a field, or its result changed while it was read.
        TransientError: the database did not answer.
    """
    assert params.url is not None
    assert params.query is not None
    with _database_trouble_named(params.url, params.query), _connected(params.url) as connection:
        query = params.query.strip().rstrip(";").replace(":", r"\:")  # a colon marks no parameter here
        count = connection.execute(text(f"SELECT count(*) FROM ({query}) AS counted")).scalar_one()
        if not count:
            raise errors.DataError(
                f"{params.url}: the query returns no rows: {params.query}",
                do="correct `source.query` or `source.url`; the last snapshot is unchanged",
            )
        return keep_records(_rows(connection, query, params, count), store)


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    address = sqlalchemy.make_url(url)
    if address.host and PASSWORD in os.environ:
        address = address.set(password=os.environ[PASSWORD])
    engine: Engine = sqlalchemy.create_engine(address)
    _require_file(address, engine.dialect.name)
    try:
        with engine.connect() as connection:
            level = _ISOLATION.get(engine.dialect.name)
            yield connection.execution_options(isolation_level=level) if level else connection
    finally:
        engine.dispose()


def _require_file(address: sqlalchemy.URL, dialect: str) -> None:
    """SQLite would create a missing file, empty.

    Raises:
        DataError: it is missing.
    """
    file = address.database
    if dialect == "sqlite" and file and not file.startswith(("file:", ":memory:")) and not Path(file).is_file():
        raise errors.DataError(
            f"{address}: there is no SQLite file {Path(file).absolute()}",
            do="correct `source.url`: sqlite:///tickets.db is in the project, sqlite:////data/tickets.db at the root",
        )


def _rows(connection: Connection, query: str, params: SourceParams, count: int) -> Iterator[bytes]:
    """Yield the rows as lines.

    Raises:
        DataError: there are not `count` of them, or they lack a field.
    """
    fields = text_fields(params)
    streaming = connection.execution_options(stream_results=True, max_row_buffer=_ROWS_AT_A_TIME)
    result = streaming.execute(text(query))
    check_fields(list(result.keys()), fields, f"{params.url}: the query")
    read = 0
    for row in result.mappings():
        read += 1
        yield line_of({field: row[field] for field in fields.values()})
    if read != count:
        raise errors.DataError(
            f"{params.url}: the query counts {count:,} rows and then gives {read:,}",
            do="query a complete table or view without random functions; the last snapshot is unchanged",
        )


@contextmanager
def _database_trouble_named(url: str, query: str) -> Iterator[None]:
    try:
        yield
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise errors.DataError(
            f"{url}: not a URL of SQLAlchemy, or its driver is not installed: {error}",
            do="correct `source.url`, or install the driver",
        ) from error
    except OperationalError as error:
        raise _unreachable(url, error) from error
    except DBAPIError as error:
        raise errors.DataError(
            f"{url}: the database refuses the query: {query}: {error.orig}",
            do="correct `source.query`, or give the user of the database the right to read",
        ) from error


def _unreachable(url: str, error: OperationalError) -> errors.DataError | errors.TransientError:
    """Return the error for a connection that failed: refused credentials and missing tables do not pass by waiting."""
    message = str(error.orig)
    if any(word in message for word in ("authentication", "password", "does not exist", "no such table", "syntax")):
        return errors.DataError(
            f"{url}: the database refuses this user or query: {message}",
            do=f"correct `source.url` or `source.query`, or set {PASSWORD} in the environment to the right password",
        )
    return errors.TransientError(
        f"{url}: the database did not answer: {message}",
        do="start it or correct `source.url`, then run again; the last snapshot is unchanged",
    )


@dataclass(frozen=True)
class _RemoteFile:
    name: str
    path: str
    size_bytes: int | None
    revision: str | None

    @classmethod
    def of(cls, name: str, path: str, info: Mapping[str, Any]) -> "_RemoteFile":
        revision = info.get("ETag") or info.get("etag") or info.get("generation")
        return cls(name, path, info.get("size"), str(revision).strip('"') if revision else None)


def keep_remote_files(params: SourceParams, store: SnapshotStore) -> tuple[SnapshotFile, ...]:
    """Keep every file at `params.url` that matches. A file with the ETag of the earlier snapshot is not read again.

    Raises:
        DataError: no file matches, or the credentials are refused.
        TransientError: the server did not answer, or a file changed while it was read.
    """
    assert params.url is not None
    url = params.url
    with _file_trouble_named(url):
        system, root = fsspec.core.url_to_fs(url, **_options(url))
        found = _listed(system, root, params.pattern, url)
        return tuple(_keep(system, file, store, url) for file in progress.track(found, "Downloading", len(found)))


def _options(url: str) -> dict[str, Any]:
    """Return the settings of the file system, without caches: file sizes are read again after a download, and the
    environment may have changed since an earlier call.
    """
    fresh = {"use_listings_cache": False, "skip_instance_cache": True}
    if url.startswith(("http://", "https://")):
        authorization = os.environ.get(AUTHORIZATION)
        headers = {"headers": {"Authorization": authorization}} if authorization else {}
        return fresh | {"client_kwargs": headers | {"trust_env": True}}
    return fresh


def _listed(system: Any, root: str, pattern: str, url: str) -> list[_RemoteFile]:
    if "http" in system.protocol:
        return [_RemoteFile.of(PurePosixPath(root.partition("?")[0]).name or "index", root, system.info(root))]
    base = root.rstrip("/")
    entries = {path: info for path, info in system.find(base, detail=True).items() if info["type"] == "file"}
    if not entries:
        raise errors.DataError(f"{url}: no file there or below it", do="correct `source.url`; the last snapshot stays")
    if list(entries) == [base]:
        return [_RemoteFile.of(PurePosixPath(base).name, base, entries[base])]
    names = {path.removeprefix(f"{base}/"): path for path in entries}
    matches = compiled(glob_translate(pattern)).match
    chosen = sorted(name for name in names if matches(name) and not is_hidden(name))
    if not chosen:
        raise no_match(url, pattern, sorted(names))
    return [_RemoteFile.of(name, names[name], entries[names[name]]) for name in chosen]


def _keep(system: Any, file: _RemoteFile, store: SnapshotStore, url: str) -> SnapshotFile:
    for earlier in store.earlier.files:
        if file.revision and (earlier.name, earlier.revision) == (file.name, file.revision):
            return store.keep_earlier(earlier, file.name)
    with store.incoming() as beside:
        system.get_file(file.path, str(beside))
        after = _RemoteFile.of(file.name, file.path, system.info(file.path))
        is_cut = file.size_bytes is not None and beside.stat().st_size != file.size_bytes
        if is_cut or after != file:
            raise errors.TransientError(
                f"{url}: {file.name} changed while it was read: {file.size_bytes} bytes before,"
                f" {after.size_bytes} after, {beside.stat().st_size} read",
                do="run again when the upload is complete; the last snapshot is unchanged",
            )
        return store.keep(file.name, beside).model_copy(update={"revision": file.revision})


@contextmanager
def _file_trouble_named(url: str) -> Iterator[None]:
    """Translate the errors of the file systems, whose classes come from their own libraries."""
    try:
        yield
    except (errors.DataError, errors.TransientError):
        raise
    except (ValueError, ImportError) as error:
        raise errors.DataError(
            f"{url}: no installed package of fsspec can open this URL: {error}",
            do="correct `source.url` (s3://, https://, …), or install the package",
        ) from error
    except Exception as error:  # each protocol has its own error classes
        raise _named(url, error) from error


def _first_with_status(error: Exception) -> Exception:
    """Return the error with the status of the server; fsspec reports each as a missing file, caused by it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Exception) and (hasattr(cause, "status") or isinstance(cause, ConnectionError)):
            return cause
        cause = cause.__cause__ or cause.__context__
    return error


def _named(url: str, error: Exception) -> Exception:
    error = _first_with_status(error)
    status, reason = getattr(error, "status", None), f"{type(error).__name__}: {error}"
    if isinstance(error, PermissionError) or status in _REFUSED or type(error).__name__ == "NoCredentialsError":
        return errors.DataError(
            f"{url}: the server refuses access: {reason}",
            do=f"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (s3://) or {AUTHORIZATION} (https://)",
        )
    if isinstance(error, FileNotFoundError) or status in _NOT_FOUND:
        return errors.DataError(
            f"{url}: no such file or bucket: {reason}", do="correct `source.url`; the last snapshot is unchanged"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return error  # our own disk failed
    return errors.TransientError(
        f"{url}: the server did not answer: {reason}",
        do="check the address in `source.url` and the network, then run again; the last snapshot is unchanged",
    )
