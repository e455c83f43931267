import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from clozeline.corpus.sources import remote as remote_files
from clozeline.system.errors import DataError, TransientError
from tests.make.stores import KEYS
from tests.make.texts import take_snapshot
from tests.text.conftest import params_of

__all__ = ["params_of"]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Address of an S3 server with the bucket `texts`."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """Client and name of a bucket of the test's own."""
    for name, value in {"AWS_ENDPOINT_URL": s3, **KEYS}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    name = f"texts-{zlib.crc32(request.node.name.encode())}"
    client.create_bucket(Bucket=name)
    return client, name


class Site(BaseHTTPRequestHandler):
    """Answers from `pages`: path → status, content, ETag."""

    pages: dict[str, tuple[int, bytes, str]] = {}  # noqa: RUF012  # the server makes an instance for each request; the test reads the class
    asked: list[str] = []  # noqa: RUF012  # the server makes an instance for each request; the test reads the class

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def _answer(self, *, with_content: bool) -> None:
        status, content, etag = self.pages[self.path]
        if with_content:
            self.asked.append(self.path)
        if self.headers.get("Authorization") != "Bearer key" and self.path.startswith("/private"):
            status = 403
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if etag:
            self.send_header("ETag", f'"{etag}"')
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    Site.pages, Site.asked = {}, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_pattern_selects_objects_of_a_bucket_including_later_ones(tmp_path: Path, bucket, params_of) -> None:
    client, name = bucket
    for key in ("in/b.txt", "in/sub/a.txt", "in/no.csv", "in/.hidden.txt", "c.txt"):
        client.put_object(Bucket=name, Key=key, Body=Path(key).stem.encode())
    params = params_of(url=f"s3://{name}/in", pattern="**/*.txt").source
    first = take_snapshot(params, Path("unread"), tmp_path / "raw")
    assert [file.name for file in first.files] == ["b.txt", "sub/a.txt"]
    assert [(tmp_path / "raw" / file.object_name).read_text() for file in first.files] == ["b", "a"]
    client.put_object(Bucket=name, Key="in/a.txt", Body=b"new")
    second = take_snapshot(params, Path("unread"), tmp_path / "grown", before=tmp_path / "raw")
    assert [(file.name, file.snapshot) for file in second.files] == [("b.txt", 1), ("sub/a.txt", 1), ("a.txt", 2)]
    assert second.files[:2] == first.files


@pytest.mark.parametrize("pattern", ["**/*", "*", "*.txt", "sub/*", "**/*.txt", "sub/**/*"])
def test_a_pattern_means_the_same_in_a_bucket_and_in_a_folder(tmp_path: Path, bucket, params_of, pattern: str) -> None:
    client, name = bucket
    for key in ("a.txt", "b.csv", "sub/c.txt", "sub/deep/d.txt"):
        client.put_object(Bucket=name, Key=key, Body=key.encode())
        (tmp_path / "texts" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / key).write_text(key)
    remote = take_snapshot(params_of(url=f"s3://{name}", pattern=pattern).source, Path("unread"), tmp_path / "remote")
    local = take_snapshot(params_of(pattern=pattern).source, tmp_path / "texts", tmp_path / "local")
    assert [file.name for file in remote.files] == [file.name for file in local.files]


def test_a_single_object_of_a_bucket_can_be_the_source(tmp_path: Path, bucket, params_of) -> None:
    client, name = bucket
    client.put_object(Bucket=name, Key="in/all.jsonl", Body=b'{"text": "one"}')
    snapshot = take_snapshot(params_of(url=f"s3://{name}/in/all.jsonl").source, Path("unread"), tmp_path / "raw")
    assert [file.name for file in snapshot.files] == ["all.jsonl"]


def test_a_bucket_that_is_missing_or_empty_is_named(tmp_path: Path, bucket, params_of) -> None:
    _, name = bucket
    for url, message in (
        (f"s3://{name}/in", "no (such )?file"),
        ("s3://no-such-bucket", "no such file or bucket"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            take_snapshot(params_of(url=url).source, Path("unread"), tmp_path / message.replace(" ", "-"))
        assert "`source.url`" in caught.value.do


def test_a_key_that_s3_refuses_is_named(
    tmp_path: Path, site: str, params_of, bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = b"<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist</Message></Error>"
    monkeypatch.setattr(Site, "pages", _Always((403, fault, "")))
    monkeypatch.setenv("AWS_ENDPOINT_URL", site)
    with pytest.raises(DataError, match="the server refuses access") as caught:
        take_snapshot(params_of(url="s3://locked").source, Path("unread"), tmp_path / "raw")
    assert "AWS_ACCESS_KEY_ID" in caught.value.do


class _Always(dict):
    def __init__(self, answer: tuple[int, bytes, str]) -> None:
        self.answer = answer

    def __getitem__(self, _: str) -> tuple[int, bytes, str]:
        return self.answer


def test_a_web_file_is_downloaded_again_only_if_its_etag_changes(tmp_path: Path, site: str, params_of) -> None:
    Site.pages = {"/all.txt": (200, b"one", "v1")}
    params = params_of(url=f"{site}/all.txt").source
    first = take_snapshot(params, Path("unread"), tmp_path / "raw")
    assert [(file.name, file.revision) for file in first.files] == [("all.txt", "v1")]
    assert take_snapshot(params, Path("unread"), tmp_path / "again", before=tmp_path / "raw") == first
    assert Site.asked == ["/all.txt"]
    Site.pages = {"/all.txt": (200, b"two", "v2")}
    second = take_snapshot(params, Path("unread"), tmp_path / "changed", before=tmp_path / "raw")
    assert [(file.revision, file.snapshot) for file in second.files] == [("v2", 2)]


def test_the_key_for_a_web_server_comes_from_the_environment(
    tmp_path: Path, site: str, params_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    Site.pages = {"/private.txt": (200, b"one", "")}
    params = params_of(url=f"{site}/private.txt").source
    with pytest.raises(DataError, match="refuses access") as caught:
        take_snapshot(params, Path("unread"), tmp_path / "raw")
    assert remote_files.AUTHORIZATION in caught.value.do
    monkeypatch.setenv(remote_files.AUTHORIZATION, "Bearer key")
    take_snapshot(params, Path("unread"), tmp_path / "allowed")
    assert "Bearer" not in (tmp_path / "allowed" / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [(404, DataError, "no such file"), (403, DataError, "refuses access"), (503, TransientError, "did not answer")],
)
def test_an_http_error_of_a_web_server_becomes_one_of_our_errors(
    tmp_path: Path, site: str, params_of, status: int, kind: type[Exception], message: str
) -> None:
    Site.pages = {"/all.txt": (status, b"", "")}
    with pytest.raises(kind, match=message):
        take_snapshot(params_of(url=f"{site}/all.txt").source, Path("unread"), tmp_path / "raw")


def test_an_unreachable_server_is_a_transient_error(tmp_path: Path, params_of, free_port) -> None:
    with pytest.raises(TransientError, match="did not answer"):
        take_snapshot(params_of(url=f"http://127.0.0.1:{free_port()}/x").source, Path("unread"), tmp_path / "raw")


def test_an_unknown_protocol_is_named(tmp_path: Path, params_of) -> None:
    with pytest.raises(DataError, match="nosuch://place"):
        take_snapshot(params_of(url="nosuch://place").source, Path("unread"), tmp_path / "raw")
