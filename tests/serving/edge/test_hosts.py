"""Host names under which the server answers."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx
import pytest
from starlette.types import ASGIApp

from clozeline.serving.access import AllowedHosts
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.serving.conftest import connection

Server = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]
LOOPBACK = ("localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.0.0.1:1", "[::1]:8000", "127.8.8.8")
ELSEWHERE = (
    "10.1.2.3:8000",
    "[fd00::7]",
    "serving:8000",
    "clozeline.example.org",
    "localhost.example.org",
    "127.0.0.1.nip.io",
)


def status_under(host: str, hosts: AllowedHosts) -> int | None:
    """Return the status that refuses a request to `host`; None if the request passes."""
    error = hosts.refusal({"http_version": "1.1", "headers": [(b"host", host.encode())]})
    return error.status if error else None


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "localhost", "::1"])
def test_a_server_on_the_loopback_accepts_only_loopback_names(listens_on: str) -> None:
    hosts = AllowedHosts.of(listens_on)
    assert [status_under(host, hosts) for host in LOOPBACK] == [None] * len(LOOPBACK)
    assert [status_under(host, hosts) for host in ELSEWHERE] == [421] * len(ELSEWHERE)


def test_a_server_on_all_addresses_accepts_any_ip_address_but_no_unlisted_name() -> None:
    hosts = AllowedHosts.of("0.0.0.0")
    asked = [*LOOPBACK, *ELSEWHERE]
    assert [host for host in asked if status_under(host, hosts) is None] == [*LOOPBACK, *ELSEWHERE[:2]]


def test_allowed_and_listened_names_are_accepted_and_a_star_allows_any() -> None:
    hosts = AllowedHosts.of("box.lan", ["Serving", "[fd00::8]"])
    names = ("serving:8000", "SERVING", "box.lan:80", "[fd00::8]:80")
    assert [status_under(host, hosts) for host in names] == [None] * 4
    assert status_under("other", hosts) == 421
    assert status_under("other", AllowedHosts.of("127.0.0.1", ["*"])) is None


HEADS = {
    "two": (b"Host: localhost\r\nHost: localhost\r\n", 400, "bad_host"),
    "two in capitals": (b"Host: localhost\r\nHOST: evil.example\r\n", 400, "bad_host"),
    "none": (b"", 400, "bad_host"),
    "no name": (b"Host: a b/c\r\n", 400, "bad_host"),
    "empty": (b"Host: \r\n", 400, "bad_host"),
    "another name": (b"Host: evil.example:8000\r\n", 421, "unknown_host"),
}


@pytest.mark.parametrize("path", ["/", "/models", "/health/live", "/v1/models"])
@pytest.mark.parametrize("head", HEADS)
def test_a_refused_host_gets_the_error_format_of_its_path(client: httpx.Client, head: str, path: str) -> None:
    sent, status, code = HEADS[head]
    with connection(client) as to_server:
        to_server.sendall(f"GET {path} HTTP/1.1\r\n".encode() + sent + b"connection: close\r\n\r\n")
        said = b"".join(iter(lambda: to_server.recv(65_536), b"")).decode()
    assert said.startswith(f"HTTP/1.1 {status} ")
    assert f'"code":"{code}"' in said
    assert "x-content-type-options: nosniff" in said


def test_a_health_check_of_http_1_0_needs_no_host(client: httpx.Client) -> None:
    with connection(client) as to_server:
        to_server.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert re.match(rb"HTTP/1\.\d 200 ", to_server.recv(65_536))


def test_the_application_accepts_only_its_configured_host_names(serving: Server, catalogue: Catalogue) -> None:
    service = Service(Capacity(num_workers=1))
    service.open(catalogue)
    with serving(create_app(service, hosts=AllowedHosts.of("127.0.0.1", ["encoder.example.org"]))) as client:
        assert client.get("/models", headers={"host": "encoder.example.org"}).status_code == 200
        assert client.get("/models", headers={"host": "evil.example"}).status_code == 421
        assert 'clozeline_rejections_total{reason="unknown_host"} 1.0' in client.get("/metrics").text
