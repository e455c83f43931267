"""The server keeps what /openapi.json promises: each example is answered as printed, each refusal is documented, and
HEAD (of load balancers) is answered wherever GET is, with the same headers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from clozeline.serving.access import OPEN_PATHS
from clozeline.serving.http.endpoint import DIALECTS
from clozeline.serving.http.openapi import OpenAPIDocument
from clozeline.serving.limits import MAX_BODY_BYTES
from clozeline.serving.loading import LoadedModel
from clozeline.serving.models import Capacity, Catalogue, Service
from tests.make.apps import KEY, opened, running
from tests.make.packages import write_embedder


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
# Takes the id of an earlier answer, which is valid once.
WITHOUT_EXAMPLE = {"/feedback"}
READ = [path for path, operations in documented()["paths"].items() if "get" in operations]


def asked(client: httpx.Client, path: str) -> str:
    """Return `path` with model and version filled in."""
    return path.format(model="encoder", version=client.get("/models").json()["models"][0]["version"])


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


@pytest.fixture(scope="module")
def api(client: httpx.Client) -> Documented:
    """The server that has a model of each kind."""
    return Documented(client)


def test_the_document_describes_every_route(api: Documented) -> None:
    asked_with_body = {path for path, operations in api.document["paths"].items() if "post" in operations}
    assert {path for path, _, _ in EXAMPLES} == asked_with_body - WITHOUT_EXAMPLE
    assert {one.path for one in DIALECTS.operations if one.ability} == asked_with_body - WITHOUT_EXAMPLE


def test_a_refusal_is_as_documented(api: Documented) -> None:
    for path, body, status in (
        ("/embed", b"{", 400),
        ("/classify", b'{"inputs": "a", "model": "other"}', 404),
        ("/classify", b" " * (MAX_BODY_BYTES + 1), 413),
        ("/predict", b'{"inputs": ["a", "b", "c"]}', 422),
        ("/invocations", b"{}", 400),
    ):
        assert api.status_of("post", path, content=body) == status


_TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES"}
INFER = "/v2/models/{model}/infer"


def test_the_schema_refuses_what_the_server_refuses(api: Documented) -> None:
    for path, body in (
        ("/fill-mask", {"inputs": "a [MASK]", "parameters": {"top_k": 5.5}}),
        ("/invocations", {"dataframe_records": [{"text": "a"}] * 257}),
        ("/invocations", {"dataframe_split": {"columns": ["text"], "data": []}}),
        ("/invocations", {"instances": [""]}),
        *((INFER, {"inputs": [_TENSOR | {"data": data}]}) for data in ([], [""], [["a", "b"]])),
        (INFER, {"inputs": [_TENSOR | {"shape": [300], "data": ["a"] * 300}]}),
    ):
        assert api.client.post(asked(api.client, path), json=body).status_code in (400, 422)
        asking = api.document["paths"][path]["post"]["requestBody"]
        with pytest.raises(jsonschema.ValidationError):
            api.check(body, asking["content"]["application/json"]["schema"])


@pytest.fixture(scope="module")
def served(dist: Path, heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[LoadedModel]]:
    """Opens the named models, which are served under other names than their folders'."""
    embedder = tmp_path_factory.mktemp("second") / "embedder"
    write_embedder(embedder)
    found = {place.name: place for place in (*dist.iterdir(), *heads.iterdir(), embedder)}
    return lambda *names: opened(*(f"clozeline-{name}={found[name]}" for name in names))


def test_every_example_is_answered_by_the_server_that_shows_it(served: Callable[..., list[LoadedModel]]) -> None:
    """Also as documented, and a document lists only routes that a model answers."""
    shown = set()
    for names in ("encoder library", "library encoder", "embedder", "ranker", "names", "reader", "writer"):
        with running(served(*names.split())) as client:
            cards = client.get("/models").json()["models"]
            api = Documented(client)
            paths = api.document["paths"]
            asked_of_models = {path for path in paths if "post" in paths[path]} - WITHOUT_EXAMPLE
            assert asked_of_models == {route for card in cards for route in card["routes"]}
            for path, operations in paths.items():
                ((method, operation),) = operations.items()
                parameters = {one["name"]: one["schema"] for one in operation.get("parameters", ())}
                model = parameters["model"]["examples"][0] if "model" in parameters else ""
                url = path.format(model=model, version=cards[0]["version"])
                if method == "get":
                    assert api.asked("get", path, url).status_code == 200
                    continue
                for name, example in operation["requestBody"]["content"]["application/json"]["examples"].items():
                    answer = api.asked("post", path, url, json=example["value"])
                    assert answer.status_code == 200, f"{path}: {answer.text}"
                    assert set(operation["responses"]["200"].get("headers", {})) <= set(answer.headers)
                    shown.add((path, name))
    assert shown == {(path, name) for path, name, _ in EXAMPLES}


def test_without_a_key_or_before_loading_every_route_is_listed_and_no_model(
    served: Callable[..., list[LoadedModel]],
) -> None:
    with running(Service(Capacity(num_workers=1))) as client:
        assert client.get("/openapi.json").json()["paths"] == documented()["paths"]
    with running(served("library"), key=KEY) as client:
        without, with_key = (client.get("/openapi.json", headers=sent) for sent in ({}, {"x-api-key": KEY}))
    assert set(without.json()["paths"]) == set(documented()["paths"])
    assert "/embed" not in with_key.json()["paths"]
    assert ["clozeline-library" in one.text for one in (without, with_key)] == [False, True]


ROUTES = [(method, path) for path, operations in documented()["paths"].items() for method in operations]


@pytest.fixture(scope="module")
def keyed(catalogue: Catalogue) -> Iterator[Documented]:
    with running(catalogue, key=KEY) as client:
        yield Documented(client)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_request_without_a_key_gets_the_documented_401(keyed: Documented, method: str, path: str) -> None:
    status = keyed.status_of(method, path, content=b"{}" if method == "post" else None)
    assert (status == 401) == (path not in OPEN_PATHS)
    wanted = keyed.document["paths"][path][method]["security"]
    assert wanted == ([] if path in OPEN_PATHS else [{"bearer": []}, {"key": []}])
    assert keyed.status_of(method, path, content=b"{", headers={"authorization": f"Bearer {KEY}"}) != 401


@pytest.mark.parametrize("path", [*READ, "/", "/docs", "/openapi.json"])
def test_every_read_route_answers_head_as_get(client: httpx.Client, path: str) -> None:
    of_the_moment = {"date", "content-length"} if path == "/metrics" else {"date"}
    head, get = (client.request(method, asked(client, path)) for method in ("HEAD", "GET"))
    assert head.status_code == get.status_code == 200
    assert int(head.headers["content-length"]) > 0
    for name in {*head.headers, *get.headers} - of_the_moment:
        assert head.headers[name] == get.headers[name]
