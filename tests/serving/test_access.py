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
        for answer in (refused, client.post("/embed", json=BODY, headers=headers)):
            assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
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


def test_a_file_or_variable_without_a_usable_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    for content in (b"\xff", b"", b"short\n"):
        file.write_bytes(content)
        for given in (file, tmp_path / "missing"):
            with pytest.raises(ParamsError) as raised:
                ApiKeys.read(given)
            assert "short" not in str(raised.value)
    file.write_text(KEYS[0], encoding="utf-8")
    for variable in (" , ", ""):
        monkeypatch.setenv(KEYS_VARIABLE, variable)
        with pytest.raises(ParamsError, match=KEYS_VARIABLE):
            ApiKeys.read(file)


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


def test_a_refused_host_gets_the_error_format_of_its_path_and_http_1_0_needs_no_host(client: httpx.Client) -> None:
    for request_line, host, status, told in (
        (b"GET / HTTP/1.1", b"Host: localhost\r\nHOST: evil.example\r\n", 400, '"code":"bad_host"'),
        (b"GET /models HTTP/1.1", b"", 400, '"code":"bad_host"'),
        (b"GET /v1/models HTTP/1.1", b"Host: a b/c\r\n", 400, '"type":"invalid_request_error"'),
        (b"GET / HTTP/1.1", b"Host: \r\n", 400, '"code":"bad_host"'),
        (b"GET / HTTP/1.1", b"Host: evil.example:8000\r\n", 421, '"code":"unknown_host"'),
        (b"GET /health/live HTTP/1.0", b"", 200, '"status":"live"'),
    ):
        with connection(client) as to_server:
            to_server.sendall(request_line + b"\r\n" + host + b"connection: close\r\n\r\n")
            said = b"".join(iter(lambda opened=to_server: opened.recv(65_536), b"")).decode()
        assert re.match(rf"HTTP/1\.\d {status} ", said)
        assert told in said
        assert "x-content-type-options: nosniff" in said


def test_the_application_accepts_only_its_configured_host_names(hosted: Hosted) -> None:
    with hosted(hosts=AllowedHosts.of("127.0.0.1", ["encoder.example.org"])) as (client, _):
        assert client.get("/models", headers={"host": "encoder.example.org"}).status_code == 200
        assert client.get("/models", headers={"host": "evil.example"}).status_code == 421
        assert 'clozeline_rejections_total{reason="unknown_host"} 1.0' in client.get("/metrics").text
