"""What /openapi.json promises is what the server does."""

from typing import Any

import httpx
import jsonschema
import pytest

from clozeline.serving.openapi import CLASSIFY_EXAMPLES, EMBED_EXAMPLES, FILL_MASK_EXAMPLES

EXAMPLES = [
    (route, name, example["value"])
    for route, examples in (
        ("/fill-mask", FILL_MASK_EXAMPLES),
        ("/embed", EMBED_EXAMPLES),
        ("/classify", CLASSIFY_EXAMPLES),
    )
    for name, example in examples.items()
]


@pytest.fixture(scope="module")
def api(client: httpx.Client) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/openapi.json").json()
    return document


def assert_fits(api: dict[str, Any], path: str, answer: httpx.Response) -> None:
    """The status is documented, and the body is of the schema given for it."""
    (operation,) = api["paths"][path].values()
    documented = operation["responses"][str(answer.status_code)]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**documented, "components": api["components"]})


def test_every_example_in_the_document_is_one_that_is_tried_here(api: dict[str, Any]) -> None:
    found = [
        (path, name, example["value"])
        for path, operations in api["paths"].items()
        for operation in operations.values()
        if "requestBody" in operation
        for name, example in operation["requestBody"]["content"]["application/json"]["examples"].items()
    ]
    assert found == EXAMPLES


@pytest.mark.parametrize(("path", "name", "body"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else "")
def test_an_example_is_answered_as_documented(
    client: httpx.Client, api: dict[str, Any], path: str, name: str, body: object
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert_fits(api, path, answer)
    headers = api["paths"][path]["post"]["responses"]["200"]["headers"]
    assert set(headers) <= set(answer.headers)


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/models"])
def test_what_tells_about_the_server_is_as_documented(client: httpx.Client, api: dict[str, Any], path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert_fits(api, path, answer)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", b"{"),
        ("/embed", b"{}"),
        ("/fill-mask", b'{"inputs": "no mask"}'),
        ("/classify", b'{"inputs": "a", "model": "other"}'),
        ("/classify", b" " * 5_000_000),
    ],
)
def test_a_refusal_is_as_documented(client: httpx.Client, api: dict[str, Any], path: str, body: bytes) -> None:
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code >= 400
    assert_fits(api, path, answer)
    assert_fits(api, path, client.post(path, content=body, headers={"content-type": "text/plain"}))


def test_the_docs_need_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert client.get("/").headers["location"] == "/docs"
