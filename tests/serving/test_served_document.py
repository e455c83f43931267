"""A server's document fits its own models: each example in it is answered exactly as printed."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from clozeline.registry.sources import parse_sources
from clozeline.serving.access import ApiKeys
from clozeline.serving.loading import open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.make.packages import write_embedder
from tests.serving.test_openapi import documented

Serving = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]
KEY = "a-key-of-some-length"
WITHOUT_EXAMPLE = {"/feedback"}
"""Takes the id of an earlier answer, which is valid once."""


@pytest.fixture
def served(dist: Path, heads: Path, tmp_path: Path) -> Callable[..., Service]:
    """Maker of a service of the named models, which are served under other names than their folders'."""
    write_embedder(tmp_path / "embedder")
    places = [*dist.iterdir(), *heads.iterdir(), tmp_path / "embedder"]

    def serve(*names: str) -> Service:
        found = {place.name: place for place in places}
        sources = parse_sources([f"clozeline-{name}={found[name]}" for name in names])
        service = Service(Capacity(num_workers=1))
        service.open(Catalogue([open_source(source, "int8") for source in sources]))
        return service

    return serve


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
def test_every_example_is_answered_by_the_server_that_shows_it(
    serving: Serving, served: Callable[..., Service], names: tuple[str, ...]
) -> None:
    with serving(create_app(served(*names))) as client:
        version = client.get("/models").json()["models"][0]["version"]
        for path, operations in document_of(client)["paths"].items():
            ((method, operation),) = operations.items()
            named = {
                one["name"]: one["schema"]["examples"][0]
                for one in operation.get("parameters", ())
                if one["name"] == "model"
            }
            url = path.format(**named, version=version)
            if method == "get":
                assert client.get(url).status_code == 200
                continue
            examples = operation["requestBody"]["content"]["application/json"]["examples"]
            assert examples or path in WITHOUT_EXAMPLE, path
            for example in examples.values():
                answer = client.post(url, json=example["value"])
                assert answer.status_code == 200, f"{path}: {answer.text}"


def test_the_document_lists_only_routes_that_its_models_answer(
    serving: Serving, served: Callable[..., Service]
) -> None:
    with serving(create_app(served("encoder", "library"))) as client:
        paths = document_of(client)["paths"]
        routes = {route for card in client.get("/models").json()["models"] for route in card["routes"]}
    asked_of_models = {path for path in paths if "post" in paths[path]}
    assert asked_of_models - {"/v2/repository/index"} - WITHOUT_EXAMPLE == routes
    assert {"/tag", "/answer", "/rerank"}.isdisjoint(paths)
    assert {path for path in paths if "get" in paths[path]} == {
        path for path, operations in documented()["paths"].items() if "get" in operations
    }


def test_without_a_key_or_before_loading_every_route_is_listed_and_no_model(
    serving: Serving, served: Callable[..., Service]
) -> None:
    every_route = set(documented()["paths"])
    with serving(create_app(Service(Capacity(num_workers=1)))) as client:
        assert set(document_of(client)["paths"]) == every_route
    with serving(create_app(served("library"), ApiKeys.of([KEY]))) as client:
        without = document_of(client)
        assert set(without["paths"]) == every_route
        assert "clozeline-library" not in str(without)
        with_key = document_of(client, authorization=f"Bearer {KEY}")
    assert "/embed" not in with_key["paths"]
    assert "clozeline-library" in str(with_key)
    assert with_key["paths"]["/classify"]["post"]["security"]


def test_the_document_of_one_server_is_not_changed_by_another(serving: Serving, served: Callable[..., Service]) -> None:
    with serving(create_app(served("library"))) as client:
        first, again = document_of(client), document_of(client)
    assert first == again
    assert "clozeline-library" in str(first)
    with serving(create_app(Service(Capacity(num_workers=1)))) as client:
        assert document_of(client)["paths"] == documented()["paths"]
