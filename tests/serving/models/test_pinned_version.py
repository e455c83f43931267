"""A request that names a version is answered by it, whatever else is served, or refused."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import httpx
import pytest
from starlette.types import ASGIApp

from clozeline.registry.sources import ModelSource
from clozeline.serving.loading import LoadedModel, ServedModel, open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from clozeline.serving.turns import Plan, VersionTurns
from tests.tiny_packages import write_encoder

Server = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("project") / "package"
    write_encoder(folder)
    return open_source(ModelSource("encoder", str(folder)), "int8")


@pytest.fixture
def service(model: LoadedModel) -> Iterator[Service]:
    """Version 1 answers, version 2 is loaded beside it, version 3 is coming."""
    first, second = (replace_version(model, version) for version in "12")
    service = Service(Capacity(num_workers=1, cache_bytes=100_000))
    catalogue = Catalogue([first])
    catalogue.keep_beside("encoder", [second], coming=["3"])
    service.open(catalogue)
    yield service
    service.close()


def ask(client: httpx.Client, version: str | None) -> httpx.Response:
    headers = {} if version is None else {"x-model-version": version}
    return client.post("/embed", json={"inputs": "the list"}, headers=headers)


def test_a_named_version_answers_or_the_request_is_refused(serving: Server, service: Service) -> None:
    with serving(create_app(service)) as client:
        for _ in range(2):  # the second time from the cache
            answers = {version: ask(client, version) for version in (None, "1", "2")}
            assert [answer.headers["x-model-version"] for answer in answers.values()] == ["1", "1", "2"]
        coming, gone = ask(client, "3"), ask(client, "9")
    assert (coming.status_code, coming.headers["retry-after"]) == (503, "1")
    assert gone.status_code == 409
    assert "one of: 1, 2" in gone.text


def test_only_requests_that_name_a_version_are_answered_by_a_replica_that_lacks_the_version_of_its_fleet(
    serving: Server, service: Service
) -> None:
    served = service.catalogue.named("encoder")
    with serving(create_app(service)) as client:
        service.schedule.set("encoder", Plan(VersionTurns("3"), {}))
        service.catalogue.keep_beside("encoder", [replace_version(served, "2")])
        assert [ask(client, version).status_code for version in (None, "1", "2")] == [503, 200, 200]
        assert ask(client, None).headers["retry-after"] == "1"
        assert client.get("/health/ready").status_code == 503
        assert client.get("/health/live").status_code == 200
        service.schedule.set("encoder", Plan.only(served))
        assert client.get("/health/ready").status_code == 200
        assert ask(client, None).status_code == 200


def replace_version(served: LoadedModel, version: str) -> LoadedModel:
    return ServedModel(replace(served.identity, version=version), served.model)
