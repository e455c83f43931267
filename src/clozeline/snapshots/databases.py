"""Snapshot of the rows that a SQL query returns."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import sqlalchemy
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError

from clozeline.artifacts.snapshot.manifest import SnapshotFile
from clozeline.errors import DataError, TransientError
from clozeline.params import SourceParams
from clozeline.records.files.fields import check_fields
from clozeline.snapshots.record_shards import keep_records, line_of, text_fields
from clozeline.snapshots.store import Store

PASSWORD: Final = "CLOZELINE_SOURCE_PASSWORD"
"""Environment variable with the password of the database."""
_ISOLATION: Final[Mapping[str, str]] = MappingProxyType(
    {"postgresql": "REPEATABLE READ", "mysql": "REPEATABLE READ", "mariadb": "REPEATABLE READ"}
)
"""Isolation level that shows one state of the database to a whole transaction, by dialect."""
_ROWS_AT_A_TIME = 1_000


def keep_rows(params: SourceParams, store: Store) -> tuple[SnapshotFile, ...]:
    """Keep text and label of every row, all as of one moment.

    Raises:
        DataError: the query cannot be run, returns no rows or lacks a field, or its result changed while it was read.
        TransientError: the database did not answer.
    """
    assert params.url is not None
    assert params.query is not None
    with _trouble_named(params.url, params.query), _connected(params.url) as connection:
        query = params.query.strip().rstrip(";").replace(":", r"\:")  # a colon marks no parameter here
        count = connection.execute(text(f"SELECT count(*) FROM ({query}) AS counted")).scalar_one()
        if not count:
            raise DataError(
                f"{params.url}: the query returns no rows: {params.query}",
                do="correct `source.query` or `source.url`; the last snapshot is unchanged",
            )
        lines = _checked(_rows(connection, query, params), count, params)
        return keep_records(lines, store)


def _checked(lines: Iterator[bytes], count: int, params: SourceParams) -> Iterator[bytes]:
    """Yield the lines.

    Raises:
        DataError: there are not `count` of them.
    """
    read = 0
    for line in lines:
        read += 1
        yield line
    if read != count:
        raise DataError(
            f"{params.url}: the query counts {count:,} rows and then gives {read:,}",
            do="query a complete table or view without random functions; the last snapshot is unchanged",
        )


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
        raise DataError(
            f"{address}: there is no SQLite file {Path(file).absolute()}",
            do="correct `source.url`: sqlite:///tickets.db is in the project, sqlite:////data/tickets.db at the root",
        )


def _rows(connection: Connection, query: str, params: SourceParams) -> Iterator[bytes]:
    fields = text_fields(params)
    streaming = connection.execution_options(stream_results=True, max_row_buffer=_ROWS_AT_A_TIME)
    result = streaming.execute(text(query))
    check_fields(list(result.keys()), fields, f"{params.url}: the query")
    for row in result.mappings():
        yield line_of({field: row[field] for field in fields.values()})


@contextmanager
def _trouble_named(url: str, query: str) -> Iterator[None]:
    try:
        yield
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise DataError(
            f"{url}: not a URL of SQLAlchemy, or its driver is not installed: {error}",
            do="correct `source.url`, or install the driver",
        ) from error
    except OperationalError as error:
        raise _unreachable(url, error) from error
    except DBAPIError as error:
        raise DataError(
            f"{url}: the database refuses the query: {query}: {error.orig}",
            do="correct `source.query`, or give the user of the database the right to read",
        ) from error


def _unreachable(url: str, error: OperationalError) -> DataError | TransientError:
    """Return the error for a connection that failed: refused credentials and missing tables do not pass by waiting."""
    message = str(error.orig)
    if any(word in message for word in ("authentication", "password", "does not exist", "no such table", "syntax")):
        return DataError(
            f"{url}: the database refuses this user or query: {message}",
            do=f"correct `source.url` or `source.query`, or set {PASSWORD} in the environment to the right password",
        )
    return TransientError(
        f"{url}: the database did not answer: {message}",
        do="start it or correct `source.url`, then run again; the last snapshot is unchanged",
    )
