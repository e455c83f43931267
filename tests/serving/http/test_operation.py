"""Every refusal has the error format of the client's protocol, whichever part of the server refuses, and the client
examples of docs/clients.md run exactly as printed, except for the port."""

import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from clozeline.params.reading import read_params
from clozeline.registry.models import model_name
from clozeline.serving.limits import MAX_BODY_BYTES
from clozeline.serving.models import Catalogue
from tests.make.apps import KEY, opened, running, service_of
from tests.make.packages import write_classifier, write_completer, write_embedder, write_encoder

HOUSE = {"error": {"code", "message", "param", "given", "expected", "do"}}
KEYS = {
    "/v1/embeddings": {"error": HOUSE["error"] | {"type"}},
    "/v2/models/encoder/infer": {"error"},
    "/invocations": {"error_code", "message"},
    "/predict": {"error", "error_type"},
    "/pipeline/fill-mask": {"error", "error_type"},
    "/fill-mask": HOUSE,
}
JSON = "application/json"
UNUSABLE = {"/v1/embeddings": 400, "/v2/models/encoder/infer": 400, "/invocations": 400}


def assert_says(answer: httpx.Response, path: str, status: int) -> None:
    assert answer.status_code == status, answer.text
    body, keys = answer.json(), KEYS[path]
    assert set(body) == set(keys)
    if isinstance(keys, dict):
        assert set(body["error"]) == keys["error"]


@pytest.mark.parametrize("path", KEYS)
def test_an_invalid_body_gets_the_error_format_of_the_protocol(client: httpx.Client, path: str) -> None:
    headers = {"content-type": JSON}
    assert_says(client.post(path, content=b"{", headers=headers), path, 400)
    assert_says(client.post(path, json={"nothing": 1}), path, UNUSABLE.get(path, 422))
    assert_says(client.post(path, content=b" " * (MAX_BODY_BYTES + 1), headers=headers), path, 413)
    assert_says(client.post(path, content=b"{}", headers=headers | {"content-encoding": "gzip"}), path, 415)
    assert_says(client.put(path), path, 405)


def test_401_and_503_have_the_error_format_of_the_protocol(catalogue: Catalogue) -> None:
    service = service_of(catalogue)
    with running(service, key=KEY) as client:
        for path in KEYS:
            assert_says(client.post(path, json={}), path, 401)
        open_paths = ("/ping", "/v2/health/live", "/v2/health/ready")
        assert [client.get(path).status_code for path in open_paths] == [200] * 3
        assert [client.get(path).status_code for path in ("/info", "/version", "/v1/models", "/v2")] == [401] * 4
        service.drain()
        for path in KEYS:
            assert_says(client.post(path, json={}), path, 503)
        assert [client.get(path).status_code for path in open_paths] == [503, 200, 503]


PROJECT = Path(__file__).parents[3]
# Packages that the default run exports, in the order in which its champions are served.
DEFAULT = {"encoder": write_encoder, "docsearch": write_embedder, "library": write_classifier}


def ran(block: str, *places: str) -> dict[str, Any]:
    """Run a block of docs/clients.md against a server of these packages, and return its variables."""
    page = (PROJECT / "docs" / "clients.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- {block}: .*?```python\n(.*?)```", page, re.DOTALL)
    assert found
    told: dict[str, Any] = {}
    with running(opened(*places)) as client:
        exec(compile(found[1].replace("8000", str(client.base_url.port)), "clients.md", "exec"), told)
    return told


def test_each_client_on_the_page_works_with_the_models_of_the_default_run(tmp_path: Path) -> None:
    assert set(DEFAULT) == set(read_params(PROJECT / "params.yaml").export.models)
    for name, write in DEFAULT.items():
        write(tmp_path / name)
    told = ran("clients", *(f"{model_name(name)}={tmp_path / name}" for name in DEFAULT))
    vectors = [one.embedding for one in told["vectors"]]
    np.testing.assert_allclose(told["vectors_NH"], vectors, atol=1e-6)
    np.testing.assert_allclose([record["embedding"] for record in told["records"]], vectors, atol=1e-6)
    assert (len(told["words"]), len(told["labels"])) == (3, 2)
    assert -1 <= told["cosine"] <= 1
    assert {label["label"] for label in told["chosen"]} == {"list", "file"}


def test_each_client_of_a_causal_model_gets_the_same_continuation(tmp_path: Path) -> None:
    write_completer(tmp_path / "writer")
    told = ran("clients of causal models", f"{model_name('encoder')}={tmp_path / 'writer'}")
    assert told["continued"]["generated_text"] == told["choice"].text == told["generated"] != ""


def test_each_client_of_the_other_kinds_works_with_models_of_that_kind(heads: Path) -> None:
    told = ran("clients of other kinds", *(str(heads / name) for name in ("names", "reader", "ranker")))
    assert all(entity.entity_group for entity in told["found"])
    answer = told["answer"]
    assert told["where"]["context"][answer.start : answer.end] == answer.answer
    assert sorted(rank["index"] for rank in told["ranks"]) == [0, 1]
