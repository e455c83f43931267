"""The server keeps what /openapi.json promises: each example is answered as printed, each refusal in any state of the
server is documented, and HEAD (of load balancers) is answered wherever GET is, with the same headers and no body."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from clozeline.serving.access import OPEN_PATHS
from clozeline.serving.http.endpoint import DIALECTS
from clozeline.serving.http.openapi import OpenAPIDocument
from clozeline.serving.limits import MAX_BODY_BYTES
from clozeline.serving.models import Capacity, Catalogue, Service
from tests.make.apps import KEY, opened, running, service_of
from tests.make.packages import write_embedder
from tests.serving.conftest import connection


def documented() -> dict[str, Any]:
    """Return the document, built without an application."""
    return OpenAPIDocument(DIALECTS).whole


# Every example of the document; a route with a body and without examples is an error here.
EXAMPLES = [
    (path, name, example["value"])
    for path, operations in documented()["paths"].items()
    for operation in operations.values()
    if "requestBody" in operation
    for name, example in operation["requestBody"]["content"]["application/json"]["examples"].items()
]
# Name of an example → its model, for examples of another model than the route's default.
ASKED = {"pairs": "ranker", "entities": "names", "answers": "reader", "greedy": "writer", "drawn": "writer"}
# Takes the id of an earlier answer, which is valid once.
WITHOUT_EXAMPLE = {"/feedback"}
READ = [path for path, operations in documented()["paths"].items() if "get" in operations]


def asked(client: httpx.Client, path: str, model: str = "encoder") -> str:
    """Return `path` with model and version filled in; a path without a model gets a /models prefix if needed."""
    prefix = "" if model == "encoder" or "{model}" in path else f"/models/{model}"
    versions = {card["name"]: card["version"] for card in client.get("/models").json()["models"]}
    return prefix + path.format(model=model, version=versions[model])


class Documented:
    """Client of a server that checks its answers against the server's document."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.document: dict[str, Any] = client.get("/openapi.json").json()

    def asked(self, method: str, path: str, url: str | None = None, **sent: Any) -> httpx.Response:
        """Send a request, assert that the document has its status and type and that the body fits, and return it."""
        headers = {"content-type": "application/json"} if method == "post" else {}
        url = url or path.format(model="encoder", version="1")
        answer = self.client.request(method, url, headers=headers | sent.pop("headers", {}), **sent)
        told = self.document["paths"][path][method]["responses"]
        assert str(answer.status_code) in told, f"{method} {path} answers {answer.status_code}: {answer.text}"
        kind = answer.headers["content-type"].partition(";")[0]
        contents = {name.partition(";")[0]: one for name, one in told[str(answer.status_code)]["content"].items()}
        assert kind in contents, f"{method} {path} answers {answer.status_code} as {kind}"
        if kind == "application/json":
            self.check(answer.json(), contents[kind]["schema"])
        return answer

    def status_of(self, method: str, path: str, **sent: Any) -> int:
        return self.asked(method, path, **sent).status_code

    def check(self, value: object, schema: dict[str, Any]) -> None:
        jsonschema.validate(value, {**schema, "components": self.document["components"]})

    def check_body(self, path: str, body: object) -> None:
        self.check(body, self.document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"])


@pytest.fixture(scope="module")
def api(client: httpx.Client) -> Documented:
    """The server that has a model of each kind."""
    return Documented(client)


def test_the_document_describes_every_route(api: Documented) -> None:
    paths = api.document["paths"]
    assert set(paths) == set(documented()["paths"])
    asked_with_body = {path for path, operations in paths.items() if "post" in operations}
    assert {path for path, _, _ in EXAMPLES} == asked_with_body - WITHOUT_EXAMPLE
    assert {one.path for one in DIALECTS.operations if one.ability} == asked_with_body - WITHOUT_EXAMPLE


@pytest.mark.parametrize(("path", "name", "body"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else "")
def test_an_example_is_answered_as_documented(api: Documented, path: str, name: str, body: dict[str, Any]) -> None:
    model = ASKED.get(name, "encoder")
    named = {"model": model} if "model" in body else {}
    answer = api.asked("post", path, asked(api.client, path, model), json=body | named)
    assert answer.status_code == 200, answer.text
    headers = api.document["paths"][path]["post"]["responses"]["200"].get("headers", {})
    assert set(headers) <= set(answer.headers)


@pytest.mark.parametrize("path", READ)
def test_answers_of_read_routes_fit_the_documented_schema(api: Documented, path: str) -> None:
    assert api.asked("get", path, asked(api.client, path)).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", b"{"),
        ("/fill-mask", b'{"inputs": "no mask"}'),
        ("/classify", b'{"inputs": "a", "model": "other"}'),
        ("/classify", b" " * 5_000_000),
        ("/v1/embeddings", b'{"model": "other", "input": "a"}'),
        ("/predict", b'{"inputs": ["a", "b", "c"]}'),
        ("/pipeline/question-answering", b'{"inputs": {"question": "a", "context": "b", "more": 1}}'),
        ("/invocations", b"{}"),
    ],
)
def test_a_refusal_is_as_documented(api: Documented, path: str, body: bytes) -> None:
    assert api.status_of("post", path, content=body) >= 400
    assert api.status_of("post", path, content=body, headers={"content-type": "text/plain"}) in (413, 415)


_TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES"}
INFER = "/v2/models/{model}/infer"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/fill-mask", {"inputs": "a [MASK]", "parameters": {"top_k": 5.0}}),
        ("/decode", {"ids": [5.0, 6.0]}),
        (INFER, {"inputs": [_TENSOR | {"shape": [1.0], "data": ["a"]}]}),
        ("/invocations", {"dataframe_split": {"columns": [5.0], "data": [["a"]]}}),
    ],
)
def test_a_float_without_fraction_is_accepted_as_an_integer(api: Documented, path: str, body: object) -> None:
    api.check_body(path, body)
    assert api.client.post(asked(api.client, path), json=body).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(("/fill-mask", {"inputs": "a [MASK]", "parameters": {"top_k": number}}) for number in (5.5, 1e300, True)),
        ("/invocations", {"dataframe_records": []}),
        ("/invocations", {"dataframe_records": [{"text": "a"}] * 257}),
        ("/invocations", {"dataframe_split": {"columns": ["text"], "data": []}}),
        ("/invocations", {"instances": [""]}),
        (INFER, {"inputs": [_TENSOR]}),
        *((INFER, {"inputs": [_TENSOR | {"data": data}]}) for data in (None, [], [""], [["a", "b"]])),
        (INFER, {"inputs": [_TENSOR | {"shape": [300], "data": ["a"] * 300}]}),
    ],
)
def test_the_schema_refuses_what_the_server_refuses(api: Documented, path: str, body: object) -> None:
    assert api.client.post(asked(api.client, path), json=body).status_code in (400, 422)
    with pytest.raises(jsonschema.ValidationError):
        api.check_body(path, body)


Serve = Callable[..., AbstractContextManager[httpx.Client]]


@pytest.fixture
def serve(dist: Path, heads: Path, tmp_path: Path) -> Serve:
    """Runs a server of the named models, which are served under other names than their folders'."""
    write_embedder(tmp_path / "embedder")
    found = {place.name: place for place in (*dist.iterdir(), *heads.iterdir(), tmp_path / "embedder")}
    return lambda *names, key=None: running(opened(*(f"clozeline-{name}={found[name]}" for name in names)), key=key)


def document_of(client: httpx.Client, **headers: str) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/openapi.json", headers=headers).json()
    return document


@pytest.mark.parametrize(
    "names",
    [
        ("encoder", "library"),
        ("library", "encoder"),
        ("ranker", "library", "names"),
        *[(name,) for name in ("encoder", "embedder", "library", "topics", "ranker", "names", "reader", "writer")],
    ],
    ids=" and ".join,
)
def test_every_example_is_answered_by_the_server_that_shows_it(serve: Serve, names: tuple[str, ...]) -> None:
    with serve(*names) as client:
        version = client.get("/models").json()["models"][0]["version"]
        for path, operations in document_of(client)["paths"].items():
            ((method, operation),) = operations.items()
            parameters = {one["name"]: one["schema"] for one in operation.get("parameters", ())}
            named = {"model": parameters["model"]["examples"][0]} if "model" in parameters else {}
            url = path.format(**named, version=version)
            if method == "get":
                assert client.get(url).status_code == 200
                continue
            examples = operation["requestBody"]["content"]["application/json"]["examples"]
            assert examples or path in WITHOUT_EXAMPLE, path
            for example in examples.values():
                answer = client.post(url, json=example["value"])
                assert answer.status_code == 200, f"{path}: {answer.text}"


def test_the_document_lists_only_routes_that_its_models_answer(serve: Serve) -> None:
    with serve("encoder", "library") as client:
        paths = document_of(client)["paths"]
        routes = {route for card in client.get("/models").json()["models"] for route in card["routes"]}
    asked_of_models = {path for path in paths if "post" in paths[path]}
    assert asked_of_models - WITHOUT_EXAMPLE == routes
    assert {"/tag", "/answer", "/rerank"}.isdisjoint(paths)
    assert {path for path in paths if "get" in paths[path]} == {
        path for path, operations in documented()["paths"].items() if "get" in operations
    }


def test_without_a_key_or_before_loading_every_route_is_listed_and_no_model(serve: Serve) -> None:
    every_route = set(documented()["paths"])
    with running(Service(Capacity(num_workers=1))) as client:
        assert set(document_of(client)["paths"]) == every_route
    with serve("library", key=KEY) as client:
        without = document_of(client)
        assert set(without["paths"]) == every_route
        assert "clozeline-library" not in str(without)
        with_key = document_of(client, authorization=f"Bearer {KEY}")
    assert "/embed" not in with_key["paths"]
    assert "clozeline-library" in str(with_key)
    with running(Service(Capacity(num_workers=1))) as client:  # it does not change the document of another server
        assert document_of(client)["paths"] == documented()["paths"]
        assert "securitySchemes" not in document_of(client)["components"]


ROUTES = [(method, path) for path, operations in documented()["paths"].items() for method in operations]
WITH_BODY = [path for method, path in ROUTES if method == "post"]


@pytest.fixture(scope="module")
def states(catalogue: Catalogue) -> Iterator[dict[str, Documented]]:
    """Servers that are loading, stopping, or protected by a key."""
    stopping = service_of(catalogue)
    servers = {
        "loading": running(Service(Capacity(num_workers=1))),
        "stopping": running(stopping),
        "keyed": running(catalogue, key=KEY),
    }
    with ExitStack() as stack:
        found = {name: Documented(stack.enter_context(server)) for name, server in servers.items()}
        stopping.drain()
        yield found


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_answers_of_a_loading_or_stopping_server_are_documented(
    states: dict[str, Documented], method: str, path: str
) -> None:
    content = b"{}" if method == "post" else None
    loading, stopping = (states[name].status_of(method, path, content=content) for name in ("loading", "stopping"))
    assert (
        method == "post"
        or states["loading"].client.head(path.format(model="encoder", version="1")).status_code == loading
    )
    assert loading in ((200, 503) if method == "get" else (400, 422, 503))
    assert stopping == 503 or (method == "get" and path in OPEN_PATHS | {"/metrics", "/models"})


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_request_without_a_key_gets_the_documented_401(states: dict[str, Documented], method: str, path: str) -> None:
    keyed = states["keyed"]
    status = keyed.status_of(method, path, content=b"{}" if method == "post" else None)
    assert (status == 401) == (path not in OPEN_PATHS)
    wanted = keyed.document["paths"][path][method]["security"]
    assert wanted == ([] if path in OPEN_PATHS else [{"bearer": []}, {"key": []}])
    assert {"bearer", "key"} == set(keyed.document["components"]["securitySchemes"])
    assert keyed.status_of(method, path, content=b"{", headers={"authorization": f"Bearer {KEY}"}) != 401


@pytest.mark.parametrize("path", WITH_BODY)
def test_a_body_that_is_too_large_is_reported_as_documented(states: dict[str, Documented], path: str) -> None:
    assert states["loading"].status_of("post", path, content=b" " * (MAX_BODY_BYTES + 1)) == 413


PAGES = ["/", "/docs", "/openapi.json"]
OF_THE_MOMENT = {"/metrics": {"date", "content-length"}}


def told(answer: httpx.Response, path: str) -> tuple[int, dict[str, str]]:
    ignored = OF_THE_MOMENT.get(path, {"date"})
    return answer.status_code, {name: value for name, value in answer.headers.items() if name not in ignored}


@pytest.mark.parametrize("path", [*READ, *PAGES])
def test_every_read_route_answers_head_as_get(client: httpx.Client, path: str) -> None:
    at = asked(client, path)
    head, get = client.head(at), client.get(at)
    assert told(head, path) == told(get, path)
    assert head.status_code == 200
    assert int(head.headers["content-length"]) > 0


@pytest.mark.parametrize(("path", "status"), [("/health/ready", 200), ("/nothing", 404), ("/embed", 405)])
def test_the_answer_to_head_never_has_a_body(client: httpx.Client, path: str, status: int) -> None:
    with connection(client) as opened:
        opened.sendall(f"HEAD {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: opened.recv(65_536), b"")).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert answer.find("\r\n\r\n") == len(answer) - 4


def test_a_head_request_is_logged_and_counted_as_head(catalogue: Catalogue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="clozeline.serving")
    with running(catalogue) as client:
        client.head("/v1/models/encoder")
        counts = client.get("/metrics").text
    assert 'clozeline_requests_total{route="/v1/models/{model}",status="200"} 1.0' in counts
    assert "HEAD /v1/models/{model} 200" in caplog.text
