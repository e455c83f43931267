"""Every refusal of every route is documented in /openapi.json, whatever state the server is in."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import jsonschema
import pytest

from clozeline.serving.access import OPEN_PATHS, ApiKeys
from clozeline.serving.limits import MAX_BODY_BYTES
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.serving.conftest import run_app
from tests.serving.test_openapi import documented

KEY = "a-key-of-some-length"
KEYS = {"keyed": ApiKeys.of([KEY])}
ROUTES = [(method, path) for path, operations in documented()["paths"].items() for method in operations]
WITH_BODY = [path for method, path in ROUTES if method == "post"]


class Documented:
    """Client of a server that checks its answers against the server's document."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.document: dict[str, Any] = client.get("/openapi.json").json()

    def status_of(self, method: str, path: str, **sent: Any) -> int:
        """Send a request, check the answer against the document, and return its status."""
        headers = {"content-type": "application/json"} if method == "post" else {}
        url = path.format(model="encoder", version="1")
        answer = self.client.request(method, url, headers=headers | sent.pop("headers", {}), **sent)
        told = self.document["paths"][path][method]["responses"]
        assert str(answer.status_code) in told, f"{method} {path} answers {answer.status_code}: {answer.text}"
        kind = answer.headers["content-type"].partition(";")[0]
        contents = {
            name.partition(";")[0]: content for name, content in told[str(answer.status_code)]["content"].items()
        }
        assert kind in contents, f"{method} {path} answers {answer.status_code} as {kind}"
        if kind == "application/json":
            jsonschema.validate(answer.json(), {**contents[kind]["schema"], "components": self.document["components"]})
        return answer.status_code


@pytest.fixture(scope="module")
def asked(catalogue: Catalogue) -> Iterator[dict[str, Documented]]:
    """Servers that are loading, stopping, or protected by a key."""
    services = {name: Service(Capacity(num_workers=1)) for name in ("loading", "stopping", "keyed")}
    for name in ("stopping", "keyed"):
        services[name].open(catalogue)
    with ExitStack() as stack:
        found = {
            name: Documented(stack.enter_context(run_app(create_app(service, KEYS.get(name)))))
            for name, service in services.items()
        }
        services["stopping"].drain()
        yield found


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_answers_of_a_loading_server_are_documented(asked: dict[str, Documented], method: str, path: str) -> None:
    content = b"{}" if method == "post" else None
    status = asked["loading"].status_of(method, path, content=content)
    assert status in (200, 503) if method == "get" else status in (400, 422, 503)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_answers_of_a_stopping_server_are_documented(asked: dict[str, Documented], method: str, path: str) -> None:
    status = asked["stopping"].status_of(method, path, content=b"{}" if method == "post" else None)
    assert status == 503 or (method == "get" and path in OPEN_PATHS | {"/metrics", "/models"})


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_request_without_a_key_gets_the_documented_401(asked: dict[str, Documented], method: str, path: str) -> None:
    keyed = asked["keyed"]
    status = keyed.status_of(method, path, content=b"{}" if method == "post" else None)
    assert (status == 401) == (path not in OPEN_PATHS)
    wanted = keyed.document["paths"][path][method]["security"]
    assert wanted == ([] if path in OPEN_PATHS else [{"bearer": []}, {"key": []}])
    assert {"bearer", "key"} == set(keyed.document["components"]["securitySchemes"])
    assert keyed.status_of(method, path, content=b"{", headers={"authorization": f"Bearer {KEY}"}) != 401


@pytest.mark.parametrize("path", WITH_BODY)
def test_a_body_that_is_too_large_is_reported_as_documented(asked: dict[str, Documented], path: str) -> None:
    assert asked["loading"].status_of("post", path, content=b" " * (MAX_BODY_BYTES + 1)) == 413


def test_a_server_without_keys_documents_no_authentication(asked: dict[str, Documented]) -> None:
    assert "securitySchemes" not in asked["loading"].document["components"]
