"""Every faulty request gets a 4xx in the same envelope, which says what to do."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clozeline.inference.fields import MAX_TEXT_CHARACTERS
from clozeline.serving.http.bodies import MAX_TEXTS
from clozeline.serving.http.endpoint import DIALECTS
from clozeline.serving.limits import MAX_BODY_BYTES
from tests.serving.test_openapi import EXAMPLES

JSON = {"content-type": "application/json"}


def assert_envelope(answer: httpx.Response, status: int, code: str, param: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"code", "message", "param", "given", "expected", "do"}
    assert (error["code"], error["param"]) == (code, param)
    assert all(error[key] for key in ("message", "given", "expected", "do"))
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"inputs": }',
        b'{"inputs": NaN}',
        b'{"inputs": "\\ud800"}',
        b'{"inputs": "\xff"}',
        '{"inputs": "a"}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"inputs": "a"} and more',
    ],
)
def test_a_body_that_is_not_json_is_malformed(client: httpx.Client, body: bytes) -> None:
    assert_envelope(client.post("/fill-mask", content=body, headers=JSON), 400, "malformed_json")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/xml", "", "é"]
)
def test_another_content_type_is_named(client: httpx.Client, content_type: str) -> None:
    answer = client.post("/fill-mask", content=b'{"inputs": "a"}', headers={b"content-type": content_type.encode()})
    assert_envelope(answer, 415, "not_json")


@pytest.mark.parametrize(
    "content_type",
    [
        "Application/JSON",
        "application/vnd.api+json",
        "application/json; charset=utf-8",
        'application/json; charset="UTF-8"',
        "application/json;CHARSET=utf8",
        "application/json; version=1",
    ],
)
def test_every_json_content_type_is_accepted(client: httpx.Client, content_type: str) -> None:
    answer = client.post("/embed", content=b'{"inputs": "a"}', headers={"content-type": content_type})
    assert answer.status_code == 200


@pytest.mark.parametrize("charset", ["iso-8859-1", '"utf-16"', "Windows-1252", "é", ""])
def test_a_charset_other_than_utf_8_is_refused_by_name(client: httpx.Client, charset: str) -> None:
    content_type = f"application/json; charset={charset}"
    answer = client.post("/fill-mask", content=b'{"inputs": "a"}', headers={b"content-type": content_type.encode()})
    error = assert_envelope(answer, 415, "not_utf8")
    assert charset.isascii() is (content_type in error["given"])
    assert "charset=utf-8" in error["expected"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "x-unheard", "GZIP", "identity, gzip"])
def test_a_compressed_body_is_refused_by_name(client: httpx.Client, encoding: str) -> None:
    content = gzip.compress(b'{"inputs": "a"}')
    answer = client.post("/fill-mask", content=content, headers=JSON | {"content-encoding": encoding})
    error = assert_envelope(answer, 415, "compressed_body")
    assert error["given"] == f"content-encoding: {encoding}"
    assert "no content-encoding" in error["expected"]
    assert answer.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
def test_a_body_with_identity_encoding_is_read(client: httpx.Client, encoding: str) -> None:
    headers = JSON | {"content-encoding": encoding}
    assert client.post("/embed", content=b'{"inputs": "a"}', headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (None, None),
        ([], None),
        ("text", None),
        ({}, "inputs"),
        ({"inputs": None}, "inputs"),
        ({"inputs": 5}, "inputs"),
        ({"inputs": {"text": "a"}}, "inputs"),
        ({"inputs": ""}, "inputs"),
        ({"inputs": " \n\t"}, "inputs"),
        ({"inputs": "a\0b"}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"inputs": ["a"] * (MAX_TEXTS + 1)}, "inputs"),
        ({"inputs": ["a", 5]}, "inputs[1]"),
        ({"inputs": ["a", "b", ""]}, "inputs[2]"),
        ({"inputs": [["a"]]}, "inputs[0]"),
        ({"inputs": [101, 7592, 102]}, "inputs[0]"),
        ({"inputs": [[101, 7592, 102]]}, "inputs[0]"),
        ({"inputs": ["a", "b" * (MAX_TEXT_CHARACTERS + 1)]}, "inputs[1]"),
        ({"inputs": "a", "truncate": "yes"}, "truncate"),
        ({"inputs": "a", "truncate": 1}, "truncate"),
        ({"inputs": "a", "parameters": 5}, "parameters"),
        ({"inputs": "a", "model": 5}, "model"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(client: httpx.Client, body: object, param: str | None) -> None:
    answer = client.post("/fill-mask", content=json.dumps(body), headers=JSON)
    assert_envelope(answer, 422, "invalid_request", param)


@pytest.mark.parametrize("top_k", [0, -1, 101, 1.5, "5", True, 10**30])
def test_top_k_has_bounds(client: httpx.Client, top_k: object) -> None:
    body = {"inputs": "[MASK]", "parameters": {"top_k": top_k}}
    assert_envelope(client.post("/fill-mask", json=body), 422, "invalid_request", "parameters.top_k")


@pytest.mark.parametrize("text", ["", " ", "a" * (MAX_TEXT_CHARACTERS + 1), "a " * 100, "a\0"])
def test_a_list_of_one_invalid_text_gets_the_same_refusal_as_the_text(client: httpx.Client, text: str) -> None:
    alone, listed = (client.post("/fill-mask", json={"inputs": inputs}) for inputs in (text, [text]))
    assert alone.status_code == listed.status_code == 422
    assert alone.json()["error"]["code"] == listed.json()["error"]["code"]


def test_an_unknown_key_is_named_and_the_nearest_known_one_offered(client: httpx.Client) -> None:
    error = assert_envelope(client.post("/fill-mask", json={"input": "a"}), 422, "unknown_key", "input")
    assert error["do"] == "rename it to `inputs`"
    body = {"inputs": "[MASK]", "parameters": {"topk": 3}}
    error = assert_envelope(client.post("/fill-mask", json=body), 422, "unknown_key", "parameters.topk")
    assert error["do"] == "rename it to `top_k`"


def test_a_text_without_mask_is_refused(client: httpx.Client) -> None:
    error = assert_envelope(
        client.post("/fill-mask", json={"inputs": ["[MASK]", "no mask"]}), 422, "no_mask", "inputs[1]"
    )
    assert "[MASK]" in error["expected"]


@pytest.mark.parametrize("route", ["/fill-mask", "/classify"])
def test_a_text_that_is_too_long_is_refused_with_both_numbers(client: httpx.Client, route: str) -> None:
    error = assert_envelope(
        client.post(route, json={"inputs": ["[MASK]", "[MASK] " * 63]}), 422, "text_too_long", "inputs[1]"
    )
    assert "65 tokens" in error["given"]
    assert "64 tokens" in error["expected"]


def test_a_mask_that_truncation_would_cut_off_is_refused(client: httpx.Client) -> None:
    body = {"inputs": "a " * 70 + "[MASK]", "truncate": True}
    assert_envelope(client.post("/fill-mask", json=body), 422, "no_mask", "inputs[0]")


def test_a_text_that_loses_one_of_two_masks_to_truncation_is_refused(client: httpx.Client) -> None:
    body = {"inputs": ["[MASK]", "[MASK] " + "a " * 70 + "[MASK]"], "truncate": True}
    error = assert_envelope(client.post("/fill-mask", json=body), 422, "mask_cut_off", "inputs[1]")
    assert "2 masks, the last 1 cut off" in error["given"]
    assert "the last 1 cut off" in client.post("/pipeline/fill-mask", json=body).text


def test_a_target_that_is_not_one_token_is_refused(client: httpx.Client) -> None:
    body = {"inputs": "[MASK]", "parameters": {"targets": ["list", "lists"]}}
    error = assert_envelope(client.post("/fill-mask", json=body), 422, "unknown_target", "parameters")
    assert "lists" in error["given"]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/fill-mask", {"parameters": {"top_k": 100}, "truncate": True}),
        ("/pipeline/fill-mask", {"parameters": {"top_k": 100}, "truncate": True}),
        ("/invocations", {"params": {"top_k": 100, "truncate": True}}),
    ],
)
def test_an_answer_too_large_for_memory_is_refused(client: httpx.Client, route: str, body: dict[str, object]) -> None:
    """A request of 100 KB would get an answer of 600 MB."""
    answer = client.post(route, json={"inputs": ["[MASK] " * 60 + "a" * 99_000], **body})
    assert answer.status_code in (400, 422)
    assert "596,520,000 characters" in answer.text
    assert "the answer would be too large" in answer.text


def test_an_unknown_model_or_label_is_not_found(client: httpx.Client) -> None:
    for route, name in (("/classify", "gpt"), ("/fill-mask", "library"), ("/classify", "encoder")):
        error = assert_envelope(client.post(route, json={"inputs": "a", "model": name}), 404, "no_such_model", "model")
        assert error["given"] == name
    body = {"inputs": "a", "parameters": {"labels": ["numpy", "rust"]}}
    error = assert_envelope(client.post("/classify", json=body), 404, "no_such_label", "parameters.labels")
    assert error["given"] == "rust"


def test_a_body_that_is_too_large_is_refused_with_a_length_or_chunked(client: httpx.Client) -> None:
    body = json.dumps({"inputs": "a" * MAX_BODY_BYTES}).encode()

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    for content in (body, chunks()):
        assert_envelope(client.post("/fill-mask", content=content, headers=JSON), 413, "body_too_large")


def test_a_body_at_the_limit_is_read(client: httpx.Client) -> None:
    body = json.dumps({"inputs": "a"}).encode().ljust(MAX_BODY_BYTES)
    assert client.post("/embed", content=body, headers=JSON).status_code == 200


def test_a_text_of_the_maximum_length_is_accepted_and_truncated(client: httpx.Client) -> None:
    for text in ("a" * MAX_TEXT_CHARACTERS, "a " * (MAX_TEXT_CHARACTERS // 2)):
        assert client.post("/embed", json={"inputs": text, "truncate": True}).status_code == 200


def test_a_missing_path_is_reported_with_the_nearest_one(client: httpx.Client) -> None:
    error = assert_envelope(client.get("/tags"), 404, "no_such_route")
    assert error["do"] == "use /tag"
    for path in ("fill-mask/", "/embed", "nothing%0A%00here", "%ff"):
        assert_envelope(client.post(f"{client.base_url}/{path}"), 404, "no_such_route")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/tag", "POST"),
        ("DELETE", "/models", "GET, HEAD"),
        ("OPTIONS", "/health", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
        ("PUT", "/classify", "POST"),
    ],
)
def test_a_wrong_method_gets_405_with_the_right_one(client: httpx.Client, method: str, path: str, allowed: str) -> None:
    answer = client.request(method, path)
    assert_envelope(answer, 405, "wrong_method")
    assert answer.headers["allow"] == allowed


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["[MASK]", "a [MASK]", "é"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
bodies = json_values | st.fixed_dictionaries(
    {"inputs": json_values | st.text(min_size=1) | st.lists(st.text(min_size=1), max_size=5)},
    optional={
        "parameters": json_values
        | st.fixed_dictionaries({}, optional=dict.fromkeys(("top_k", "targets"), json_values)),
        "truncate": json_values,
        "model": json_values,
    },
)
paths = st.sampled_from(sorted({path.format(model="encoder", version="1") for path, _, _ in EXAMPLES}))


def assert_answer_or_envelope(path: str, answer: httpx.Response) -> None:
    assert answer.headers["content-type"] == "application/json"
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500, answer.text
        envelope = DIALECTS.words_at(path).envelope.model_validate(answer.json())
        assert envelope.model_dump() == answer.json()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=paths, body=bodies)
def test_no_json_makes_the_server_fail(client: httpx.Client, path: str, body: object) -> None:
    content = json.dumps(body, ensure_ascii=True).encode()
    assert_answer_or_envelope(path, client.post(path, content=content, headers=JSON))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=paths, content=st.binary(max_size=60), content_type=st.sampled_from(["application/json", "text/html", "/;"])
)
def test_no_bytes_make_the_server_fail(client: httpx.Client, path: str, content: bytes, content_type: str) -> None:
    assert_answer_or_envelope(path, client.post(path, content=content, headers={"content-type": content_type}))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=paths, texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=6)
)
def test_any_text_is_answered_or_refused(client: httpx.Client, path: str, texts: list[str]) -> None:
    assert_answer_or_envelope(path, client.post(path, json={"inputs": [f"{text} [MASK]" for text in texts]}))
