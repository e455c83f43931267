import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from clozeline.corpus.cleaning.portions import open_snapshot, opened
from clozeline.corpus.sources import remote
from clozeline.params.text import SourceParams
from clozeline.system.errors import DataError, TransientError
from tests.make.servers import Postgres, running_postgres
from tests.make.texts import take_snapshot
from tests.text.conftest import params_of

__all__ = ["params_of"]
SELECT = "SELECT body, topic FROM tickets ORDER BY id"
PASSWORD = "geheim"


@pytest.fixture
def asked(params_of) -> Callable[..., SourceParams]:
    def build(url: str, query: str = SELECT) -> SourceParams:
        return params_of(kind="sql", url=url, query=query, text_field="body", label_field="topic").source

    return build


@pytest.fixture
def sqlite(tmp_path: Path) -> Path:
    path = tmp_path / "tickets.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE tickets (id INTEGER PRIMARY KEY, body TEXT, topic TEXT, at TEXT)")
        rows = [("printer :on fire 100 %", "print"), (None, None), ("no mail", "mail")]
        database.executemany("INSERT INTO tickets (body, topic) VALUES (?, ?)", rows)
    database.close()
    return path


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    from tests.make.servers import held_ports

    with held_ports() as free_port, running_postgres(free_port()) as server:
        with admin(server) as connection:
            connection.execute(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
            connection.execute("CREATE TABLE tickets (id int PRIMARY KEY, body text, topic text)")
            connection.execute("INSERT INTO tickets SELECT n, 'ticket ' || n, 'mail' FROM generate_series(1, 5000) n")
            connection.execute("GRANT SELECT ON tickets TO reader")
            connection.execute("CREATE TABLE secrets (body text, topic text)")
        yield server


def admin(server: Postgres) -> psycopg.Connection:
    return psycopg.connect(f"host={server.data} port={server.port} user=postgres dbname=postgres", autocommit=True)


def url_of(server: Postgres) -> str:
    return f"postgresql+psycopg://reader@127.0.0.1:{server.port}/postgres"


def texts(raw: Path, params: SourceParams) -> list[tuple[str, str]]:
    text = open_snapshot(raw, params)
    units = opened(text.files, text.reading).units
    return [(document.text, document.source) for unit in units for document in unit.documents()]


def test_rows_are_read_with_their_label(tmp_path: Path, sqlite: Path, asked) -> None:
    params = asked(f"sqlite:///{sqlite}")
    take_snapshot(params, Path("unread"), tmp_path / "raw")
    assert texts(tmp_path / "raw", params) == [("printer :on fire 100 %", "print"), ("", ""), ("no mail", "mail")]


def test_colons_and_percent_signs_in_a_query_are_literal(tmp_path: Path, sqlite: Path, asked) -> None:
    params = asked(f"sqlite:///{sqlite}", "SELECT body, topic FROM tickets WHERE body LIKE '%:on%';")
    take_snapshot(params, Path("unread"), tmp_path / "raw")
    assert texts(tmp_path / "raw", params) == [("printer :on fire 100 %", "print")]


def test_new_rows_come_after_those_of_the_last_snapshot(tmp_path: Path, sqlite: Path, asked) -> None:
    params = asked(f"sqlite:///{sqlite}", "SELECT body, topic FROM tickets WHERE body NOTNULL ORDER BY body")
    first = take_snapshot(params, Path("unread"), tmp_path / "raw")
    with sqlite3.connect(sqlite) as database:
        database.execute("INSERT INTO tickets (body, topic) VALUES ('an early letter', 'mail')")
    database.close()
    second = take_snapshot(params, Path("unread"), tmp_path / "grown", before=tmp_path / "raw")
    assert second.files[0] == first.files[0]
    assert [text for text, _ in texts(tmp_path / "grown", params)] == [
        *("no mail", "printer :on fire 100 %", "an early letter"),
    ]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT body, topic FROM tickets WHERE id > 99", "the query returns no rows"),
        ("SELECT topic FROM tickets", "the query: no field `body`"),
        ("SELECT body, topic FROM nowhere", "refuses"),
        ("SELEKT", "refuses"),
    ],
)
def test_an_unusable_query_is_refused(tmp_path: Path, sqlite: Path, asked, query: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        take_snapshot(asked(f"sqlite:///{sqlite}", query), Path("unread"), tmp_path / "raw")


def test_a_query_with_changing_results_is_refused(tmp_path: Path, sqlite: Path, asked) -> None:
    query = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
    query = f"SELECT 'text' AS body, 'x' AS topic FROM ({query} SELECT i FROM n) WHERE random() > 0"
    with pytest.raises(DataError, match=r"counts [\d,]+ rows"):
        take_snapshot(asked(f"sqlite:///{sqlite}", query), Path("unread"), tmp_path / "raw")


def test_a_missing_file_of_sqlite_is_named_and_not_created(tmp_path: Path, asked) -> None:
    with pytest.raises(DataError, match=r"none\.db"):
        take_snapshot(asked(f"sqlite:///{tmp_path}/none.db"), Path("unread"), tmp_path / "raw")
    assert not (tmp_path / "none.db").exists()


def test_a_missing_driver_is_named(tmp_path: Path, asked) -> None:
    with pytest.raises(DataError, match="its driver"):
        take_snapshot(asked("nosuchdb://host/name"), Path("unread"), tmp_path / "raw")


def test_postgresql_shows_one_state_while_others_write(
    tmp_path: Path, postgres: Postgres, asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(remote.PASSWORD, PASSWORD)
    line_of, written = remote.line_of, []

    def writing(record):
        if not written:  # after the first row was read
            with admin(postgres) as connection:
                connection.execute("DELETE FROM tickets WHERE id > 4000")
                connection.execute("INSERT INTO tickets SELECT n, 'late ' || n, 'x' FROM generate_series(6000, 8000) n")
            written.append(True)
        return line_of(record)

    monkeypatch.setattr(remote, "line_of", writing)
    params = asked(url_of(postgres))
    take_snapshot(params, Path("unread"), tmp_path / "raw")
    assert [text for text, _ in texts(tmp_path / "raw", params)] == [f"ticket {number}" for number in range(1, 5001)]
    assert PASSWORD not in (tmp_path / "raw" / "manifest.json").read_text()


def test_a_wrong_password_is_not_a_transient_error(
    tmp_path: Path, postgres: Postgres, asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(remote.PASSWORD, "wrong")
    with pytest.raises(DataError, match="refuses this user") as caught:
        take_snapshot(asked(url_of(postgres)), Path("unread"), tmp_path / "raw")
    assert remote.PASSWORD in caught.value.do


def test_an_unreadable_table_is_named(
    tmp_path: Path, postgres: Postgres, asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(remote.PASSWORD, PASSWORD)
    with pytest.raises(DataError, match="refuses the query"):
        take_snapshot(asked(url_of(postgres), "SELECT * FROM secrets"), Path("unread"), tmp_path / "raw")


def test_a_server_that_is_down_is_a_transient_error(tmp_path: Path, asked, free_port) -> None:
    url = f"postgresql+psycopg://reader@127.0.0.1:{free_port()}/postgres"
    with pytest.raises(TransientError, match="did not answer"):
        take_snapshot(asked(url), Path("unread"), tmp_path / "raw")
