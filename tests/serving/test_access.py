"""API keys decide which requests get in, and every answer has the security headers for browsers."""

import hmac
import re
from hmac import compare_digest
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers

from clozeline.serving.access import SECURITY_HEADERS, AllowedHosts, ApiKeys
from clozeline.serving.errors import KEYS_VARIABLE
from clozeline.system.errors import ParamsError
from tests.serving.conftest import Hosted, connection

KEYS = ("one-key-of-a-team-1234", "another-key-of-it-5678")
BODY = {"inputs": "a"}


def test_a_request_needs_a_valid_key_and_no_key_is_logged(hosted: Hosted, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with hosted(keys=ApiKeys.of(KEYS)) as (client, _):
        for headers in ({}, {"authorization": "Bearer wrong-key-altogether"}, {"authorization": f"Basic {KEYS[0]}"}):
            refused = client.post("/classify", json=BODY, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "no_key")
            assert refused.headers["www-authenticate"] == "Bearer"
        for headers in ({"authorization": f"Bearer {KEYS[0]}"}, {"x-api-key": KEYS[1]}):
            assert client.post("/embed", json=BODY, headers=headers).status_code == 200
        assert [client.get(path).status_code for path in ("/metrics", "/v1/models/secret", "/secret")] == [401] * 3
        for path in ("/health", "/health/live", "/health/ready", "/openapi.json", "/docs"):
            assert client.get(path).status_code == 200
        counts = client.get("/metrics", headers={"x-api-key": KEYS[1]}).text
    for route, number in (("/classify", 3), ("/v1/models/{model}", 1), ("(no route)", 1)):
        assert f'clozeline_requests_total{{route="{route}",status="401"}} {number}.0' in counts
    assert "secret" not in counts
    assert not any(key in caplog.text for key in (*KEYS, "wrong-key-altogether"))


def test_keys_come_from_a_file_and_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{KEYS[0]}\n\n", encoding="utf-8")
    assert ApiKeys.read(None).digests == ()
    monkeypatch.setenv(KEYS_VARIABLE, f" {KEYS[1]} ,")
    assert len(ApiKeys.read(None).digests) == 1
    both = ApiKeys.read(file)
    assert both.digests == ApiKeys.of(KEYS).digests
    assert all(key not in repr(both) for key in KEYS)


@pytest.mark.parametrize("given", [" , ", ""])
def test_a_key_variable_without_a_usable_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, given)
    (tmp_path / "keys").write_text(KEYS[0], encoding="utf-8")
    for source in (None, tmp_path / "keys"):
        with pytest.raises(ParamsError, match=KEYS_VARIABLE):
            ApiKeys.read(source)


@pytest.mark.parametrize("content", [b"\xff", b"", b"short\n"])
def test_a_key_file_without_a_usable_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys").write_bytes(content)
    for file in (tmp_path / "keys", tmp_path / "missing"):
        with pytest.raises(ParamsError) as raised:
            ApiKeys.read(file)
        assert "short" not in str(raised.value)


def test_a_key_is_compared_with_every_one_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time tells nothing about the keys: neither where a key differs nor whether an earlier key matches."""
    compared: list[tuple[int, int]] = []

    def compare(given: bytes, known: bytes) -> bool:
        compared.append((len(given), len(known)))
        return compare_digest(given, known)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = ApiKeys.of(KEYS)
    given = [KEYS[0], KEYS[1], "", KEYS[0][:-1], "x" * 1_000]
    assert [keys.accepts_key(Headers({"x-api-key": key})) for key in given] == [True, True, False, False, False]
    assert compared == [(32, 32)] * (len(KEYS) * len(given))


@pytest.mark.parametrize(("method", "path"), [("POST", "/embed"), ("GET", "/no"), ("PUT", "/embed")])
def test_every_answer_has_the_security_headers(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path, json=BODY)
    assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_the_docs_keep_their_own_policy(client: httpx.Client) -> None:
    assert "script-src" in client.get("/docs").headers["content-security-policy"]


LOOPBACK = ("localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:1", "[::1]:8000", "127.8.8.8")
ADDRESSES = ("10.1.2.3:8000", "[fd00::7]")
NAMES = ("serving:8000", "localhost.example.org", "127.0.0.1.nip.io")


def passing(hosts: AllowedHosts, *names: str) -> list[str]:
    """Return the names under which a request passes; under any other it must be refused with 421."""
    scopes = {name: {"http_version": "1.1", "headers": [(b"host", name.encode())]} for name in names}
    refusals = {name: hosts.refusal(scope) for name, scope in scopes.items()}
    assert {refusal.status for refusal in refusals.values() if refusal} <= {421}
    return [name for name, refusal in refusals.items() if refusal is None]


def test_a_server_accepts_loopback_names_and_elsewhere_any_address_but_no_unlisted_name() -> None:
    every = (*LOOPBACK, *ADDRESSES, *NAMES)
    for listens_on in ("127.0.0.1", "localhost", "::1"):
        assert passing(AllowedHosts.of(listens_on), *every) == [*LOOPBACK]
    assert passing(AllowedHosts.of("0.0.0.0"), *every) == [*LOOPBACK, *ADDRESSES]
    listed = ("serving:8000", "SERVING", "box.lan:80", "[fd00::8]:80")
    assert passing(AllowedHosts.of("box.lan", ["Serving", "[fd00::8]"]), *listed, "other") == [*listed]
    assert passing(AllowedHosts.of("127.0.0.1", ["*"]), "other") == ["other"]


@pytest.mark.parametrize("path", ["/", "/models", "/v1/models"])
@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"Host: localhost\r\nHOST: evil.example\r\n", 400, "bad_host"),
        (b"", 400, "bad_host"),
        (b"Host: a b/c\r\n", 400, "bad_host"),
        (b"Host: \r\n", 400, "bad_host"),
        (b"Host: evil.example:8000\r\n", 421, "unknown_host"),
    ],
)
def test_a_refused_host_gets_the_error_format_of_its_path(
    client: httpx.Client, head: bytes, status: int, code: str, path: str
) -> None:
    with connection(client) as to_server:
        to_server.sendall(f"GET {path} HTTP/1.1\r\n".encode() + head + b"connection: close\r\n\r\n")
        said = b"".join(iter(lambda: to_server.recv(65_536), b"")).decode()
    assert said.startswith(f"HTTP/1.1 {status} ")
    assert f'"code":"{code}"' in said
    assert "x-content-type-options: nosniff" in said


def test_a_health_check_of_http_1_0_needs_no_host(client: httpx.Client) -> None:
    with connection(client) as to_server:
        to_server.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert re.match(rb"HTTP/1\.\d 200 ", to_server.recv(65_536))


def test_the_application_accepts_only_its_configured_host_names(hosted: Hosted) -> None:
    with hosted(hosts=AllowedHosts.of("127.0.0.1", ["encoder.example.org"])) as (client, _):
        assert client.get("/models", headers={"host": "encoder.example.org"}).status_code == 200
        assert client.get("/models", headers={"host": "evil.example"}).status_code == 421
        assert 'clozeline_rejections_total{reason="unknown_host"} 1.0' in client.get("/metrics").text
