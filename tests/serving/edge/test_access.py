"""API keys decide which requests get in, and every answer has the security headers for browsers."""

import hmac
from collections.abc import Callable
from contextlib import AbstractContextManager
from hmac import compare_digest
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.types import ASGIApp

from clozeline.serving.access import SECURITY_HEADERS, ApiKeys
from clozeline.serving.errors import KEYS_VARIABLE
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from clozeline.system.errors import ParamsError

Server = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]
KEYS = ("one-key-of-a-team-1234", "another-key-of-it-5678")
BODY = {"inputs": "a"}


def test_a_request_needs_a_valid_key_and_no_key_is_logged(
    serving: Server, catalogue: Catalogue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    service = Service(Capacity(num_workers=1))
    service.open(catalogue)
    with serving(create_app(service, ApiKeys.of(KEYS))) as client:
        for headers in ({}, {"authorization": "Bearer wrong-key-altogether"}, {"authorization": f"Basic {KEYS[0]}"}):
            refused = client.post("/classify", json=BODY, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "no_key")
            assert refused.headers["www-authenticate"] == "Bearer"
        for headers in ({"authorization": f"Bearer {KEYS[0]}"}, {"x-api-key": KEYS[1]}):
            assert client.post("/embed", json=BODY, headers=headers).status_code == 200
            assert client.get("/metrics", headers=headers).status_code == 200
        assert [client.get(path).status_code for path in ("/metrics", "/models", "/nothing")] == [401, 401, 401]
        for path in ("/health", "/health/live", "/health/ready", "/openapi.json", "/docs"):
            assert client.get(path).status_code == 200
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
    file = tmp_path / "keys"
    file.write_text(KEYS[0], encoding="utf-8")
    for source in (None, file):
        with pytest.raises(ParamsError, match=f"unset {KEYS_VARIABLE}"):
            ApiKeys.read(source)


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


@pytest.mark.parametrize("content", [None, "", "short\n"])
def test_a_key_file_without_a_usable_key_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(ParamsError) as raised:
        ApiKeys.read(file)
    assert "short" not in str(raised.value)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/embed"), ("GET", "/models"), ("GET", "/no"), ("PUT", "/embed")]
)
def test_every_answer_has_the_security_headers(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path, json=BODY)
    assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_the_docs_keep_their_own_policy(client: httpx.Client) -> None:
    assert "script-src" in client.get("/docs").headers["content-security-policy"]
