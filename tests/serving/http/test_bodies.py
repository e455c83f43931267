"""Every faulty request gets a 4xx that names a field of its body in the client's terms and says what to do, and each of
several models of a kind is reached by a base URL that ends in `/models/NAME`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clozeline.inference.fields import MAX_TEXT_CHARACTERS
from clozeline.serving.http.bodies import MAX_TEXTS
from clozeline.serving.http.endpoint import DIALECTS
from clozeline.serving.limits import MAX_BODY_BYTES
from clozeline.serving.models import Catalogue
from tests.make.apps import KEY, opened, running
from tests.make.packages import write_embedder
from tests.serving.http.test_openapi import EXAMPLES, asked

JSON = {"content-type": "application/json"}
PATHS = sorted({path for path, _, _ in EXAMPLES})


def assert_envelope(answer: httpx.Response, status: int, code: str, param: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"code", "message", "param", "given", "expected", "do"}
    assert (error["code"], error["param"]) == (code, param)
    assert all(error[key] for key in ("message", "given", "expected", "do"))
    return error


NOT_JSON = [b"", b'{"inputs": NaN}', b'{"inputs": "\\ud800"}', b'{"inputs": "\xff"}', b"[" * 100_000, b"{} and more"]


def test_a_body_that_is_not_json_is_malformed(client: httpx.Client) -> None:
    for body in NOT_JSON:
        assert_envelope(client.post("/fill-mask", content=body, headers=JSON), 400, "malformed_json")


EXPECTED = {"not_json": "application/json", "not_utf8": "charset=utf-8", "compressed_body": "no content-encoding"}
HEADERS = [
    ("content-type", ["text/plain", "", "é"], "not_json"),
    ("content-type", [f"application/json; charset={one}" for one in ('"utf-16"', "Windows-1252", "é", "")], "not_utf8"),
    ("content-encoding", ["gzip", "x-unheard", "GZIP", "identity, gzip"], "compressed_body"),
    ("content-encoding", ["Identity", ""], None),
    ("content-type", ["Application/JSON", "application/vnd.api+json", "application/json; version=1"], None),
    ("content-type", [f"application/json;{one}" for one in (' charset="UTF-8"', "CHARSET=utf8")], None),
]


@pytest.mark.parametrize(("name", "values", "code"), HEADERS)
def test_headers_say_whether_a_body_is_plain_json_in_utf_8(
    client: httpx.Client, name: str, values: list[str], code: str | None
) -> None:
    for value in values:
        headers = {b"content-type": b"application/json", name.encode(): value.encode()}
        answer = client.post("/fill-mask", content=b'{"inputs": "[MASK]"}', headers=headers)
        if code is None:
            assert answer.status_code == 200, value
            continue
        error = assert_envelope(answer, 415, code)
        assert EXPECTED[code] in error["expected"]
        assert not value.isascii() or value in error["given"]
        assert answer.headers.get("accept-encoding") == ("identity" if code == "compressed_body" else None)


def test_a_field_that_cannot_be_used_is_named(client: httpx.Client) -> None:
    for body, param in (
        (None, None),
        ({}, "inputs"),
        *(({"inputs": inputs}, "inputs") for inputs in (None, 5, "", " \n\t", "a\0b", [], ["a"] * (MAX_TEXTS + 1))),
        ({"inputs": ["a", 5]}, "inputs[1]"),
        ({"inputs": [101, 7592, 102]}, "inputs[0]"),
        ({"inputs": ["a", "b" * (MAX_TEXT_CHARACTERS + 1)]}, "inputs[1]"),
        ({"inputs": "a", "truncate": 1}, "truncate"),
        *(({"inputs": "a", "parameters": {"top_k": k}}, "parameters.top_k") for k in (0, 101, 1.5, "5", True, 10**30)),
    ):
        answer = client.post("/fill-mask", content=json.dumps(body), headers=JSON)
        assert_envelope(answer, 422, "invalid_request", param)


def test_a_list_of_one_invalid_text_gets_the_same_refusal_as_the_text(client: httpx.Client) -> None:
    for text in ("", "a " * 100):
        alone, listed = (client.post("/fill-mask", json={"inputs": inputs}) for inputs in (text, [text]))
        assert alone.status_code == listed.status_code == 422
        assert alone.json()["error"]["code"] == listed.json()["error"]["code"]


LONG = "the " * 100
CUT = {"inputs": ["[MASK]", "[MASK] " + "a " * 70 + "[MASK]"], "truncate": True}
NO_TARGET = {"inputs": "[MASK]", "parameters": {"targets": ["list", "lists"]}}
NO_LABEL = {"inputs": "a", "parameters": {"labels": ["numpy", "rust"]}}


def test_a_faulty_body_is_refused_by_code_and_field(client: httpx.Client) -> None:
    for path, body, status, code, param, told in (
        ("/fill-mask", {"inputs": 5, "parameters": {"topk": 3}}, 422, "unknown_key", "parameters.topk", "`top_k`"),
        ("/fill-mask", {"inputs": ["[MASK]", "no mask"]}, 422, "no_mask", "inputs[1]", "[MASK] at least once"),
        ("/fill-mask", CUT, 422, "mask_cut_off", "inputs[1]", "2 masks, the last 1 cut off"),
        ("/classify", {"inputs": ["[MASK]", "[MASK] " * 63]}, 422, "text_too_long", "inputs[1]", "65 tokens"),
        ("/fill-mask", NO_TARGET, 422, "unknown_target", "parameters", "'lists'"),
        ("/fill-mask", {"inputs": "a", "model": "library"}, 404, "no_such_model", "model", "library"),
        ("/classify", NO_LABEL, 404, "no_such_label", "parameters.labels", "rust"),
    ):
        error = assert_envelope(client.post(path, json=body), status, code, param)
        assert told in " ".join((error["given"], error["expected"], error["do"]))


def test_a_wrong_value_is_reported_with_its_field_in_every_protocol(client: httpx.Client) -> None:
    for path, body, told in (
        ("/decode", {"ids": [[1], ["a"]]}, "`ids[1][0]` cannot be used"),
        ("/similarity", {"inputs": {"source_sentence": LONG, "sentences": ["a"]}}, "`inputs.source_sentence` is too"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [LONG]}}, "`inputs.sentences[0]` is too"),
        ("/rerank", {"query": "a", "texts": ["a", LONG]}, "`texts[1]` is too long"),
        ("/invocations", {"instances": ["a", LONG]}, "`rows[1]` is too long"),
    ):
        answer = client.post(path, json=body).json()
        assert told in (answer.get("message") or answer["error"])


def test_an_answer_too_large_for_memory_is_refused(client: httpx.Client) -> None:
    """A request of 100 KB would get an answer of 600 MB."""
    body = {"inputs": ["[MASK] " * 60 + "a" * 99_000], "parameters": {"top_k": 100}, "truncate": True}
    answer = client.post("/fill-mask", json=body)
    assert answer.status_code == 422
    assert "596,520,000 characters" in answer.text


def test_a_body_that_is_too_large_is_refused_with_a_length_or_chunked(client: httpx.Client) -> None:
    body = json.dumps({"inputs": "a" * MAX_BODY_BYTES}).encode()
    chunks = (body[start : start + 65_536] for start in range(0, len(body), 65_536))
    for content in (body, chunks):
        assert_envelope(client.post("/fill-mask", content=content, headers=JSON), 413, "body_too_large")


def test_a_body_and_a_text_at_their_limits_are_read(client: httpx.Client) -> None:
    body = json.dumps({"inputs": "a"}).encode().ljust(MAX_BODY_BYTES)
    assert client.post("/embed", content=body, headers=JSON).status_code == 200
    for text in ("a" * MAX_TEXT_CHARACTERS, "a " * (MAX_TEXT_CHARACTERS // 2)):
        assert client.post("/embed", json={"inputs": text, "truncate": True}).status_code == 200


def test_a_missing_path_is_reported_with_the_nearest_one_and_a_wrong_method_with_the_right_one(
    client: httpx.Client,
) -> None:
    assert assert_envelope(client.get("/tags"), 404, "no_such_route")["do"] == "use /tag"
    for path in ("fill-mask/", "/embed", "nothing%0A%00here", "%ff"):
        assert_envelope(client.post(f"{client.base_url}/{path}"), 404, "no_such_route")
    for method, path, allowed in (("GET", "/tag", "POST"), ("POST", "/openapi.json", "GET, HEAD")):
        answer = client.request(method, path)
        assert_envelope(answer, 405, "wrong_method")
        assert answer.headers["allow"] == allowed


texts = st.text(min_size=1) | st.text(st.characters(exclude_categories=["Cs"])).map("{} [MASK]".format)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
parameters = st.fixed_dictionaries({}, optional=dict.fromkeys(("top_k", "targets"), json_values))
bodies = json_values | st.fixed_dictionaries(
    {"inputs": json_values | texts | st.lists(texts, max_size=5)},
    optional={"parameters": json_values | parameters, "truncate": json_values, "model": json_values},
)
paths = st.sampled_from([path.format(model="encoder", version="1") for path in PATHS])


def assert_answer_or_envelope(path: str, answer: httpx.Response) -> None:
    assert answer.headers["content-type"] == "application/json"
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500, answer.text
        envelope = DIALECTS.words_at(path).envelope.model_validate(answer.json())
        assert envelope.model_dump() == answer.json()


@pytest.mark.slow  # 300 examples
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=paths, body=bodies)
def test_no_json_makes_the_server_fail(client: httpx.Client, path: str, body: object) -> None:
    content = json.dumps(body, ensure_ascii=True).encode()
    assert_answer_or_envelope(path, client.post(path, content=content, headers=JSON))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(paths, st.binary(max_size=60), st.sampled_from(["application/json", "text/html", "/;"]))
def test_no_bytes_make_the_server_fail(client: httpx.Client, path: str, content: bytes, content_type: str) -> None:
    assert_answer_or_envelope(path, client.post(path, content=content, headers={"content-type": content_type}))


@pytest.fixture(scope="module")
def twice(dist: Path, heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """Catalogue with two models of each kind that text-embeddings-inference serves."""
    embedder = tmp_path_factory.mktemp("second") / "embedder"
    write_embedder(embedder)
    places = [dist / "encoder", embedder, dist / "library", heads / "topics", heads / "ranker"]
    return Catalogue(opened(*places, f"ranker-2={heads / 'ranker'}"))


@pytest.fixture(scope="module")
def several(twice: Catalogue) -> Iterator[httpx.Client]:
    with running(twice) as client:
        yield client


def test_the_model_named_in_the_path_answers(several: httpx.Client) -> None:
    for model, path, body in (
        ("embedder", "/v1/embeddings", {"model": "embedder", "input": "the list"}),
        ("topics", "/invocations", {"inputs": ["open the file"]}),
        ("ranker-2", "/predict", {"inputs": ["open", "the file"]}),
    ):
        answer, unknown = (several.post(f"/models/{name}{path}", json=body) for name in (model, "nobody"))
        assert (answer.status_code, answer.headers.get("x-model")) == (200, model), answer.text
        assert unknown.status_code in {404, 400}  # 400: the body names another model than the path
        assert "nobody" in unknown.text


@pytest.mark.parametrize("path", PATHS)
def test_no_route_answers_with_a_model_other_than_the_named_one(several: httpx.Client, path: str) -> None:
    """The paths come from the document, so that routes added later are tested too."""
    bodies = [body for of_path, _, body in EXAMPLES if of_path == path]
    answers = [several.post(f"/models/nobody{asked(several, path)}", json=body) for body in bodies]
    assert {answer.status_code for answer in answers} <= {404, 422, 400}


def test_a_base_url_with_a_model_name_has_the_other_routes_too_and_metrics_and_log_no_name(
    several: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="clozeline.serving")
    assert several.get("/models/topics/info").json()["model_id"] == "topics"
    for path in ("/health", "/metrics", "/v1/models", "/models"):
        assert several.get(f"/models/topics{path}").status_code == 200
    refused = several.post("/models/topics/classify", json={"inputs": "a", "model": "library"})
    assert (refused.status_code, refused.json()["error"]["given"]) == (422, "/models/topics and library")
    for path in ("/models/encoder", "/models//embed", "/models/encoder/nothing"):
        missing = several.post(path, json={"inputs": "a"})
        assert (missing.status_code, missing.json()["error"]["given"]) == (404, f"POST {path}")
    for name in ("encoder", "nobody-1"):
        several.post(f"/models/{name}/embed", json={"inputs": "a"})
    assert "POST /embed 200" in caplog.text
    assert "nobody-1" not in caplog.text + several.get("/metrics").text


def test_under_a_model_name_a_key_is_required_and_cached_answers_are_of_that_model(twice: Catalogue) -> None:
    body = {"inputs": "open the file"}
    with running(twice, key=KEY, cache_bytes=100_000) as client:
        assert client.get("/models/topics/health").status_code == 200
        refused = client.post("/models/topics/predict", json=body)
        assert (refused.status_code, set(refused.json())) == (401, {"error", "error_type"})
        client.headers["x-api-key"] = KEY
        answers = [client.post(f"{prefix}/predict", json=body) for prefix in ("", "/models/topics", "/models/topics")]
    assert [answer.headers["x-model"] for answer in answers] == ["library", "topics", "topics"]
    assert [answer.headers.get("x-cache") for answer in answers] == [None, None, "hit"]
