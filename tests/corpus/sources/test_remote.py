"""Rows of a database, objects of a bucket and web files become files of a snapshot; what cannot be read is named."""

import sqlite3
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import boto3
import psycopg
import pytest
from moto.server import ThreadedMotoServer

from clozeline.corpus.sources import remote
from clozeline.params.text import SourceParams
from clozeline.records.snapshot import Snapshot
from clozeline.system.errors import DataError, TransientError
from tests.make.servers import Handler, answering, held_ports, running_postgres
from tests.make.stores import KEYS
from tests.make.texts import documents_in, take_snapshot

SELECT = "SELECT body, topic FROM tickets ORDER BY id"
PASSWORD = "geheim"


@pytest.fixture
def asked(params_of) -> Callable[..., SourceParams]:
    """`asked(url, query)`: the params of a database."""
    fields = {"kind": "sql", "text_field": "body", "label_field": "topic"}
    return lambda url, query=SELECT: params_of(url=url, query=query, **fields).source


@pytest.fixture
def sqlite(tmp_path: Path) -> Path:
    path = tmp_path / "tickets.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE tickets (id INTEGER PRIMARY KEY, body TEXT, topic TEXT, at TEXT)")
        rows = [("printer :on fire 100 %", "print"), (None, None), ("no mail", "mail")]
        database.executemany("INSERT INTO tickets (body, topic) VALUES (?, ?)", rows)
    database.close()
    return path


@pytest.fixture
def take(tmp_path: Path) -> Callable[..., Snapshot]:
    """`take(params, name, before)`: a snapshot in the folder `name`, in the order of the one in the folder `before`."""

    def take(params: SourceParams, name: str = "raw", before: str | None = None) -> Snapshot:
        return take_snapshot(params, Path("unread"), tmp_path / name, None if before is None else tmp_path / before)

    return take


def texts(raw: Path, params: SourceParams) -> list[tuple[str, str]]:
    return [(document.text, document.source) for document in documents_in(raw, params)]


def test_rows_are_read_with_their_label_and_new_ones_come_last(tmp_path: Path, sqlite: Path, asked, take) -> None:
    """Colons and percent signs in a query are literal."""
    params = asked(f"sqlite:///{sqlite}", "SELECT * FROM tickets WHERE coalesce(body, '') <> ':on 9 %' ORDER BY body;")
    first = take(params)
    rows = [("", ""), ("no mail", "mail"), ("printer :on fire 100 %", "print")]
    assert texts(tmp_path / "raw", params) == rows
    with sqlite3.connect(sqlite) as database:
        database.execute("INSERT INTO tickets (body, topic) VALUES ('an early letter', 'mail')")
    database.close()
    assert take(params, "grown", before="raw").files[0] == first.files[0]
    assert texts(tmp_path / "grown", params) == [*rows, ("an early letter", "mail")]


NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) SELECT i FROM n"
CHANGING = f"SELECT 'text' AS body, 'x' AS topic FROM ({NUMBERS})"


@pytest.mark.parametrize(
    ("url", "query", "kind", "message"),
    [
        ("sqlite:///{db}", "SELECT body, topic FROM tickets WHERE id > 99", DataError, "the query returns no rows"),
        ("sqlite:///{db}", "SELEKT", DataError, "refuses"),
        ("sqlite:///{db}", f"{CHANGING} WHERE random() > 0", DataError, r"counts [\d,]+ rows"),
        ("sqlite:///{folder}/none.db", SELECT, DataError, r"none\.db"),
        ("postgresql+psycopg://reader@127.0.0.1:{port}/postgres", SELECT, TransientError, "did not answer"),
    ],
    ids=["no rows", "no SQL", "changing rows", "no file", "no server"],
)
def test_a_faulty_database_is_named(tmp_path, sqlite, asked, take, free_port, url, query, kind, message: str) -> None:
    params = asked(url.format(db=sqlite, folder=tmp_path, port=free_port()), query)
    with pytest.raises(kind, match=message):
        take(params)
    assert not (tmp_path / "none.db").exists(), "SQLite would create it"


def test_postgresql_shows_one_state_while_others_write(tmp_path: Path, asked, take, monkeypatch) -> None:
    """What a user may not read is named."""
    numbers = "INSERT INTO tickets SELECT n, 'ticket ' || n, 'mail' FROM generate_series"
    line_of, written = remote.line_of, []
    with held_ports() as free_port, running_postgres(free_port()) as server:

        def execute(*statements: str) -> None:
            place = f"host={server.data} port={server.port} user=postgres dbname=postgres"
            with psycopg.connect(place, autocommit=True) as connection:
                for statement in statements:
                    connection.execute(statement)

        def writing(record):
            if not written:  # after the first row was read
                execute("DELETE FROM tickets WHERE id > 4000", f"{numbers}(6000, 8000) n")
                written.append(True)
            return line_of(record)

        execute(
            f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'",
            "CREATE TABLE tickets (id int PRIMARY KEY, body text, topic text)",
            f"{numbers}(1, 5000) n",
            "GRANT SELECT ON tickets TO reader",
            "CREATE TABLE secrets (body text, topic text)",
        )
        monkeypatch.setenv(remote.PASSWORD, PASSWORD)
        monkeypatch.setattr(remote, "line_of", writing)
        url = f"postgresql+psycopg://reader@127.0.0.1:{server.port}/postgres"
        take(asked(url))
        found = [text for text, _ in texts(tmp_path / "raw", asked(url))]
        assert found == [f"ticket {number}" for number in range(1, 5001)]
        assert PASSWORD not in (tmp_path / "raw" / "manifest.json").read_text()
        with pytest.raises(DataError, match="refuses the query"):
            take(asked(url, "SELECT * FROM secrets"), "of others")
        monkeypatch.setenv(remote.PASSWORD, "wrong")
        with pytest.raises(DataError, match="refuses this user") as caught:
            take(asked(url), "as another")
        assert remote.PASSWORD in caught.value.do


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """`put(key, …)` puts objects, each with its key as content, into a bucket of an S3 server; its address."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {"AWS_ENDPOINT_URL": f"http://{host}:{port}", **KEYS}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="texts")

    def put(*keys: str) -> str:
        for key in keys:
            client.put_object(Bucket="texts", Key=key, Body=key.encode())
        return "s3://texts"

    yield put
    server.stop()


class Site(Handler):
    """Answers from `pages`: path (`*` for others) → status, content, ETag."""

    pages: dict[str, tuple[int, bytes, str]] = {}  # noqa: RUF012  # the server makes an instance for each request; the test reads the class
    asked: list[str] = []  # noqa: RUF012  # the server makes an instance for each request; the test reads the class

    def do_GET(self) -> None:
        status, content, etag = self.pages[self.path] if self.path in self.pages else self.pages["*"]
        if self.headers.get("Authorization") != "Bearer key" and self.path.startswith("/private"):
            status = 403
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if etag:
            self.send_header("ETag", f'"{etag}"')
        self.end_headers()
        if self.command == "GET":
            self.asked.append(self.path)
            self.wfile.write(content)

    do_HEAD = do_GET


@pytest.fixture
def site() -> Iterator[str]:
    Site.pages, Site.asked = {}, []
    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Site)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_a_pattern_selects_objects_of_a_bucket_including_later_ones(
    tmp_path: Path, put, site: str, params_of, take, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that is missing, empty or locked is named."""
    bucket = put("in/b.txt", "in/sub/a.txt", "in/no.csv", "in/.hidden.txt", "c.txt")
    params = params_of(url=f"{bucket}/in", pattern="**/*.txt").source
    first = take(params)
    assert [file.name for file in first.files] == ["b.txt", "sub/a.txt"]
    assert [(tmp_path / "raw" / file.object_name).read_text() for file in first.files] == ["in/b.txt", "in/sub/a.txt"]
    flat = take(params_of(url=f"{bucket}/in", pattern="*.txt").source, "flat")
    assert [file.name for file in flat.files] == ["b.txt"]
    put("in/a.txt")
    second = take(params, "grown", before="raw")
    assert [(file.name, file.snapshot) for file in second.files] == [("b.txt", 1), ("sub/a.txt", 1), ("a.txt", 2)]
    assert second.files[:2] == first.files
    one = take(params_of(url=f"{bucket}/in/b.txt").source, "one")
    assert [file.name for file in one.files] == ["b.txt"], "a single object can be the source"
    for url, message in ((f"{bucket}/nowhere", "no (such )?file"), ("s3://no-such", "or bucket")):
        with pytest.raises(DataError, match=message) as caught:
            take(params_of(url=url).source, "none" + url[-2:])
        assert "`source.url`" in caught.value.do
    Site.pages = {"*": (403, b"<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>", "")}
    monkeypatch.setenv("AWS_ENDPOINT_URL", site)
    with pytest.raises(DataError, match="the server refuses access") as caught:
        take(params_of(url="s3://locked").source, "locked")
    assert "AWS_ACCESS_KEY_ID" in caught.value.do


def test_a_web_file_is_downloaded_again_only_if_its_etag_changes(site: str, params_of, take) -> None:
    Site.pages = {"/all.txt": (200, b"one", "v1")}
    params = params_of(url=f"{site}/all.txt").source
    first = take(params)
    assert [(file.name, file.revision) for file in first.files] == [("all.txt", "v1")]
    assert take(params, "again", before="raw") == first
    assert Site.asked == ["/all.txt"]
    Site.pages = {"/all.txt": (200, b"two", "v2")}
    assert [(file.revision, file.snapshot) for file in take(params, "new", before="raw").files] == [("v2", 2)]


def test_the_key_for_a_web_server_comes_from_the_environment(tmp_path, site: str, params_of, take, monkeypatch) -> None:
    Site.pages = {"/private.txt": (200, b"one", "")}
    params = params_of(url=f"{site}/private.txt").source
    with pytest.raises(DataError, match="refuses access") as caught:
        take(params)
    assert remote.AUTHORIZATION in caught.value.do
    monkeypatch.setenv(remote.AUTHORIZATION, "Bearer key")
    take(params, "allowed")
    assert "Bearer" not in (tmp_path / "allowed" / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("{site}/404.txt", DataError, "no such file"),
        ("{site}/503.txt", TransientError, "did not answer"),
        ("http://127.0.0.1:{port}/x", TransientError, "did not answer"),
        ("nosuch://place", DataError, "nosuch://place"),
    ],
)
def test_a_url_that_cannot_be_read_is_named(site, params_of, take, free_port, url, kind, message: str) -> None:
    Site.pages = {f"/{status}.txt": (status, b"", "") for status in (404, 403, 503)}
    with pytest.raises(kind, match=message):
        take(params_of(url=url.format(site=site, port=free_port())).source)
