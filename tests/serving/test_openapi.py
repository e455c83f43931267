"""The server keeps what /openapi.json promises."""

from typing import Any

import httpx
import jsonschema
import pytest

from clozeline.serving.http.endpoint import DIALECTS
from clozeline.serving.http.openapi import OpenAPIDocument


def documented() -> dict[str, Any]:
    """Return the document, built without an application."""
    return OpenAPIDocument(DIALECTS).whole


EXAMPLES = [
    (path, name, example["value"])
    for path, operations in documented()["paths"].items()
    for operation in operations.values()
    if "requestBody" in operation
    for name, example in operation["requestBody"]["content"]["application/json"]["examples"].items()
]
"""Every example of the document; a route with a body and without examples is an error here."""
ASKED = {"pairs": "ranker", "entities": "names", "answers": "reader", "greedy": "writer", "drawn": "writer"}
"""Name of an example → its model, for examples of another model than the route's default."""
READ = [path for path, operations in documented()["paths"].items() if "get" in operations]


def asked(client: httpx.Client, path: str, model: str = "encoder") -> str:
    """Return `path` with model and version filled in; a path without a model gets a /models prefix if needed."""
    prefix = "" if model == "encoder" or "{model}" in path else f"/models/{model}"
    versions = {card["name"]: card["version"] for card in client.get("/models").json()["models"]}
    return prefix + path.format(model=model, version=versions[model])


@pytest.fixture(scope="module")
def api(client: httpx.Client) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/openapi.json").json()
    return document


def assert_fits(api: dict[str, Any], path: str, answer: httpx.Response) -> None:
    """Assert that the status is documented and that the body fits its schema."""
    (operation,) = api["paths"][path].values()
    documented = operation["responses"][str(answer.status_code)]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**documented, "components": api["components"]})


def test_the_document_describes_every_route(api: dict[str, Any]) -> None:
    """The server has a model of each kind."""
    assert set(api["paths"]) == set(documented()["paths"])
    asked_with_body = {path for path, operations in api["paths"].items() if "post" in operations}
    scored = {"/feedback"}  # has no example: a request id is valid once
    assert {path for path, _, _ in EXAMPLES} == asked_with_body - scored
    about_all_models = {"/v2/repository/index"} | scored
    assert {one.path for one in DIALECTS.operations if one.ability} == asked_with_body - about_all_models


@pytest.mark.parametrize(("path", "name", "body"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else "")
def test_an_example_is_answered_as_documented(
    client: httpx.Client, api: dict[str, Any], path: str, name: str, body: dict[str, Any]
) -> None:
    model = ASKED.get(name, "encoder")
    named = {"model": model} if "model" in body else {}
    answer = client.post(asked(client, path, model), json=body | named)
    assert answer.status_code == 200, answer.text
    assert_fits(api, path, answer)
    headers = api["paths"][path]["post"]["responses"]["200"].get("headers", {})
    assert set(headers) <= set(answer.headers)


@pytest.mark.parametrize("path", READ)
def test_answers_of_read_routes_fit_the_documented_schema(client: httpx.Client, api: dict[str, Any], path: str) -> None:
    answer = client.get(asked(client, path))
    assert answer.status_code == 200
    if answer.headers["content-type"] == "application/json":
        assert_fits(api, path, answer)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", b"{"),
        ("/embed", b"{}"),
        ("/fill-mask", b'{"inputs": "no mask"}'),
        ("/classify", b'{"inputs": "a", "model": "other"}'),
        ("/classify", b" " * 5_000_000),
        ("/v1/embeddings", b"{}"),
        ("/v1/embeddings", b'{"model": "other", "input": "a"}'),
        ("/predict", b'{"inputs": ["a", "b", "c"]}'),
        ("/rerank", b'{"query": "a"}'),
        ("/tag", b'{"inputs": "a", "model": "encoder"}'),
        ("/pipeline/question-answering", b'{"inputs": {"question": "a", "context": "b", "more": 1}}'),
        ("/pipeline/fill-mask", b'{"inputs": "no mask"}'),
        ("/invocations", b"{}"),
    ],
)
def test_a_refusal_is_as_documented(client: httpx.Client, api: dict[str, Any], path: str, body: bytes) -> None:
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code >= 400
    assert_fits(api, path, answer)
    assert_fits(api, path, client.post(path, content=body, headers={"content-type": "text/plain"}))


def test_the_docs_load_nothing_external(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text
    assert "https://" not in page.text


def bodies(api: dict[str, Any]) -> dict[str, Any]:
    """Path → schema of its request body."""
    return {
        path: {**operation["requestBody"]["content"]["application/json"]["schema"], "components": api["components"]}
        for path, operations in api["paths"].items()
        for operation in operations.values()
        if "requestBody" in operation
    }


_TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES"}
INFER = "/v2/models/{model}/infer"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/fill-mask", {"inputs": "a [MASK]", "parameters": {"top_k": 5.0}}),
        ("/embed", {"inputs": "a", "dimensions": 2.0}),
        ("/decode", {"ids": [5.0, 6.0]}),
        (INFER, {"inputs": [_TENSOR | {"shape": [1.0], "data": ["a"]}]}),
        ("/invocations", {"dataframe_split": {"columns": [5.0], "data": [["a"]]}}),
    ],
)
def test_a_float_without_fraction_is_accepted_as_an_integer(
    client: httpx.Client, api: dict[str, Any], path: str, body: object
) -> None:
    jsonschema.validate(body, bodies(api)[path])
    assert client.post(asked(client, path), json=body).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/fill-mask", {"inputs": "a [MASK]", "parameters": {"top_k": 5.5}}),
        ("/fill-mask", {"inputs": "a [MASK]", "parameters": {"top_k": 1e300}}),
        ("/fill-mask", {"inputs": "a [MASK]", "parameters": {"top_k": True}}),
        ("/invocations", {"dataframe_records": []}),
        ("/invocations", {"dataframe_records": [{"text": "a"}] * 257}),
        ("/invocations", {"dataframe_split": {"columns": ["text"], "data": []}}),
        ("/invocations", {"instances": []}),
        ("/invocations", {"instances": [""]}),
        ("/invocations", {"inputs": []}),
        ("/invocations", {"inputs": ""}),
        (INFER, {"inputs": [_TENSOR]}),
        (INFER, {"inputs": [_TENSOR | {"data": None}]}),
        (INFER, {"inputs": [_TENSOR | {"data": []}]}),
        (INFER, {"inputs": [_TENSOR | {"data": [""]}]}),
        (INFER, {"inputs": [_TENSOR | {"data": [["a", "b"]]}]}),
        (INFER, {"inputs": [_TENSOR | {"shape": [300], "data": ["a"] * 300}]}),
    ],
)
def test_the_schema_refuses_what_the_server_refuses(
    client: httpx.Client, api: dict[str, Any], path: str, body: object
) -> None:
    assert client.post(asked(client, path), json=body).status_code in (400, 422)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body, bodies(api)[path])
