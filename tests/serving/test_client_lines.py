"""The client examples of docs/clients.md run exactly as printed, except for the port."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from clozeline.params.reading import read_params
from clozeline.registry.models import model_name
from clozeline.registry.sources import parse_sources
from clozeline.serving.loading import open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.make.packages import write_classifier, write_completer, write_embedder, write_encoder
from tests.serving.conftest import Server

PROJECT = Path(__file__).parents[2]
DEFAULT = {"encoder": write_encoder, "docsearch": write_embedder, "library": write_classifier}
"""Packages that the default run exports, in the order in which its champions are served."""
OTHERS = ("names", "reader", "ranker")
Serve = Callable[[Sequence[str]], AbstractContextManager[httpx.Client]]


@pytest.fixture
def served(serving: Server) -> Serve:
    def serve(places: Sequence[str]) -> AbstractContextManager[httpx.Client]:
        service = Service(Capacity(num_workers=1))
        service.open(Catalogue([open_source(source, "int8") for source in parse_sources(places)]))
        return serving(create_app(service))

    return serve


def ran(block: str, client: httpx.Client) -> dict[str, Any]:
    """Run a block of docs/clients.md and return its variables."""
    page = (PROJECT / "docs" / "clients.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- {block}: .*?```python\n(.*?)```", page, re.DOTALL)
    assert found
    told: dict[str, Any] = {}
    exec(compile(found[1].replace("8000", str(client.base_url.port)), "clients.md", "exec"), told)
    return told


def test_each_client_on_the_page_works_with_the_models_of_the_default_run(served: Serve, tmp_path: Path) -> None:
    assert set(DEFAULT) == set(read_params(PROJECT / "params.yaml").export.models)
    for name, write in DEFAULT.items():
        write(tmp_path / name)
    with served([f"{model_name(name)}={tmp_path / name}" for name in DEFAULT]) as client:
        told = ran("clients", client)
    vectors = [one.embedding for one in told["vectors"]]
    np.testing.assert_allclose(told["vectors_NH"], vectors, atol=1e-6)
    np.testing.assert_allclose([record["embedding"] for record in told["records"]], vectors, atol=1e-6)
    assert len(told["words"]) == 3
    assert len(told["labels"]) == 2
    assert -1 <= told["cosine"] <= 1
    assert {label["label"] for label in told["chosen"]} == {"list", "file"}


def test_each_client_of_a_causal_model_gets_the_same_continuation(served: Serve, tmp_path: Path) -> None:
    write_completer(tmp_path / "writer")
    with served([f"{model_name('encoder')}={tmp_path / 'writer'}"]) as client:
        told = ran("clients of causal models", client)
    assert told["continued"]["generated_text"] == told["choice"].text == told["generated"]
    assert told["choice"].text


def test_each_client_of_the_other_kinds_works_with_models_of_that_kind(served: Serve, heads: Path) -> None:
    with served([str(heads / name) for name in OTHERS]) as client:
        told = ran("clients of other kinds", client)
    assert all(entity.entity_group for entity in told["found"])
    answer = told["answer"]
    assert told["where"]["context"][answer.start : answer.end] == answer.answer
    assert sorted(rank["index"] for rank in told["ranks"]) == [0, 1]
