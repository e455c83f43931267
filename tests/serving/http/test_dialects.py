"""Every refusal has the error format of the client's protocol, whichever part of the server refuses."""

from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from starlette.responses import Response

from clozeline.inference.fields import StrictModel
from clozeline.serving.http.dialects import Dialect, Dialects, Words
from clozeline.serving.http.endpoint import DIALECTS
from clozeline.serving.http.house_texts import EMBEDDING, embedded
from clozeline.serving.http.openapi import OpenAPIDocument
from clozeline.serving.http.operation import Call, JsonResponse, Operation
from clozeline.serving.limits import MAX_BODY_BYTES
from clozeline.serving.models import Catalogue
from tests.make.apps import KEY, running, service_of

HOUSE = {"error": {"code", "message", "param", "given", "expected", "do"}}
KEYS = {
    "/v1/embeddings": {"error": HOUSE["error"] | {"type"}},
    "/v2/models/encoder/infer": {"error"},
    "/invocations": {"error_code", "message"},
    "/predict": {"error", "error_type"},
    "/similarity": {"error", "error_type"},
    "/tokenize": {"error", "error_type"},
    "/pipeline/fill-mask": {"error", "error_type"},
    "/embed": {"error", "error_type"},
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
    assert_says(client.post(path, content=b"{}", headers={"content-type": f"{JSON}; charset=utf-16"}), path, 415)
    assert_says(client.put(path), path, 405)


def test_401_and_503_have_the_error_format_of_the_protocol(catalogue: Catalogue) -> None:
    service = service_of(catalogue)
    with running(service, key=KEY) as client:
        for path in KEYS:
            assert_says(client.post(path, json={}), path, 401)
        for path in ("/ping", "/v2/health/live", "/v2/health/ready"):
            assert client.get(path).status_code == 200
        assert [client.get(path).status_code for path in ("/info", "/version", "/v1/models", "/v2")] == [401] * 4
        service.drain()
        for path in KEYS:
            assert_says(client.post(path, json={}), path, 503)
        assert [client.get(path).status_code for path in ("/ping", "/v2/health/live")] == [503, 200]


class Shout(StrictModel):
    say: str


class Murmur(BaseModel):
    sorry: str


async def shout(call: Call, body: Shout) -> Response:
    """Say it loudly.

    It is heard far away.
    """
    served = call.served(EMBEDDING)
    reply = await embedded(call, served, [body.say], truncate=False)
    return JsonResponse({"loud": body.say.upper(), "numbers": len(reply.answers[0])}, headers=reply.headers)


TOY = Dialect(
    Words(Murmur, lambda status, detail: Murmur(sorry=detail.code), unusable=400),
    (
        Operation(
            path="/v2/shout",
            answer=shout,
            result=dict[str, Any],
            ability=EMBEDDING,
            body=Shout,
            place=lambda number: "say",
        ),
    ),
    tag="Toy",
)


def test_a_new_protocol_needs_one_file_and_one_row(catalogue: Catalogue) -> None:
    """They give it paths, an error format, an entry in the document and counts, without any other change.

    The other paths under /v2 belong to another protocol, which keeps its own error format there.
    """
    with running(catalogue, dialects=Dialects((*DIALECTS.rows, TOY))) as client:
        answer = client.post("/v2/shout", json={"say": "a"})
        assert (answer.json()["loud"], answer.headers["x-model"]) == ("A", "encoder")
        for method, path, sent, status, code in (
            ("POST", "/v2/shout", {"json": {"cry": "a"}}, 400, "unknown_key"),
            ("POST", "/v2/shout", {"json": {"say": "a " * 100}}, 400, "text_too_long"),
            ("POST", "/v2/shout", {"content": b"{", "headers": {"content-type": JSON}}, 400, "malformed_json"),
            ("POST", "/v2/shout", {"content": b" " * (MAX_BODY_BYTES + 1)}, 413, "body_too_large"),
            ("GET", "/v2/shout", {}, 405, "wrong_method"),
            ("GET", "/v2/shout/nothing", {}, 404, "no_such_route"),
            ("POST", "/models/nobody/v2/shout", {"json": {"say": "a"}}, 404, "no_such_model"),
        ):
            told = client.request(method, path, **sent)
            assert (told.status_code, told.json()["sorry"]) == (status, code)
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200
        for path in ("/v2/nothing", "/v2/models/nobody"):
            assert set(client.get(path).json()) == {"error"}
        told_of = OpenAPIDocument(Dialects((*DIALECTS.rows, TOY))).whole["paths"]["/v2/shout"]["post"]
        assert (told_of["tags"], told_of["description"]) == (["Toy"], "It is heard far away.")
        assert told_of["responses"]["400"]["content"][JSON]["schema"] == {"$ref": "#/components/schemas/Murmur"}
        assert 'clozeline_requests_total{route="/v2/shout",status="200"} 1.0' in client.get("/metrics").text
        cards = client.get("/models").json()["models"]
        embeds = [card["name"] for card in cards if "/embed" in card["routes"]]
        assert len(embeds) < len(cards)
        assert [card["name"] for card in cards if "/v2/shout" in card["routes"]] == embeds
