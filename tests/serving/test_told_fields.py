"""An error uses the client's terms: a field that the client sent, a JSON value, a route of its protocol."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.serving.test_openapi import EXAMPLES, asked

WRONG = [None, True, 1.5, {}, [], [None], ["a", "b", "c"], [["a"], 5], [[None]], {"a": 1}]
FIELD = re.compile(r"`([^`]+)` cannot be used")
LONG = "the " * 100


def with_one_wrong(body: Any) -> Iterator[Any]:
    """Yield copies of `body` in which one value is replaced by one of WRONG."""
    yield from WRONG
    if isinstance(body, dict):
        for key, value in body.items():
            yield from ({**body, key: wrong} for wrong in with_one_wrong(value))
    if isinstance(body, list):
        for place, value in enumerate(body):
            yield from ([*body[:place], wrong, *body[place + 1 :]] for wrong in with_one_wrong(value))


def is_field_of(field: str, body: Any) -> bool:
    """Return whether `field` leads to a value of `body`, to a key that one of its objects lacks, or to its only row."""
    *steps, last = re.findall(r"[^.\[\]]+", field)
    for step in steps:
        body = body[int(step)] if isinstance(body, list) else body[step]
    return int(last) < len(body) if isinstance(body, list) else isinstance(body, dict) or last == "0"


def sentence(answer: httpx.Response) -> str:
    told = answer.json()
    said = told.get("message") or told["error"]
    return said if isinstance(said, str) else f"{said['message']} (given: {said['given']}; expected: {said['expected']}"


@pytest.mark.parametrize("path", sorted({path for path, _, _ in EXAMPLES}))
def test_refusals_name_fields_of_the_body_and_values_as_json(client: httpx.Client, path: str) -> None:
    url = asked(client, path)
    bodies = [wrong for of_path, _, body in EXAMPLES if of_path == path for wrong in with_one_wrong(body)]
    told = [(body, sentence(answer)) for body in bodies if (answer := client.post(url, json=body)).status_code >= 400]
    assert told
    for body, said in told:
        found = FIELD.match(said)
        assert not found or found[1] == "the body" or is_field_of(found[1], body), (body, said)
        assert not re.search(r"given: (None|True|False)|expected: (None|True|False)|'\w+' (or|to) '", said), said


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/predict", {"inputs": ["a", "b", "c"]}, ['[["a"], ["b"], ["c"]]', '[["a", "b"]]', 'given: ["a","b","c"]']),
        ("/predict", {"inputs": None}, ["`inputs`", "given: null"]),
        ("/decode", {"ids": ["a"]}, ["`ids[0]`", "a valid integer", 'given: "a"']),
        ("/decode", {"ids": [[1], ["a"]]}, ["`ids[1][0]`"]),
        ("/embed", {"inputs": "a", "normalize": False}, ["given: false; expected: true"]),
        ("/v1/embeddings", {"model": "encoder", "input": "a", "encoding_format": 5}, ['expected: "float" or "base64"']),
    ],
)
def test_a_wrong_value_is_reported_as_it_was_written(
    client: httpx.Client, path: str, body: object, told: list[str]
) -> None:
    said = sentence(client.post(path, json=body))
    assert [part for part in told if part not in said] == [], said


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/embed", {"inputs": ["a", LONG]}, "inputs[1]"),
        ("/similarity", {"inputs": {"source_sentence": LONG, "sentences": ["a"]}}, "inputs.source_sentence"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a", LONG]}}, "inputs.sentences[1]"),
        (
            "/pipeline/sentence-similarity",
            {"inputs": {"source_sentence": "a", "sentences": [LONG]}},
            "inputs.sentences[0]",
        ),
        ("/rerank", {"query": "a", "texts": ["a", LONG]}, "texts[1]"),
        ("/v1/embeddings", {"model": "encoder", "input": ["a", LONG]}, "input[1]"),
        (
            "/v2/models/encoder/infer",
            {"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a", LONG]}]},
            "inputs[0].data[1]",
        ),
        ("/zero-shot", {"inputs": LONG, "parameters": {"candidate_labels": ["a", "b"]}}, "inputs"),
        ("/invocations", {"instances": ["a", LONG]}, "rows[1]"),
        ("/fill-mask", {"inputs": ["[MASK]", "a"]}, "inputs[1]"),
    ],
)
def test_an_unusable_text_is_reported_with_its_field(client: httpx.Client, path: str, body: object, field: str) -> None:
    said = sentence(client.post(path, json=body))
    assert said.startswith((f"`{field}` is too long for the model", f"`{field}` has no mask")), said


def test_an_unknown_model_on_openai_routes_gets_a_404_that_names_v1_models(client: httpx.Client) -> None:
    embeddings = client.post("/v1/embeddings", json={"model": "gpt", "input": "a"})
    card = client.get("/v1/models/gpt")
    for answer in (embeddings, card):
        assert answer.status_code == 404
        assert "choose a name from /v1/models" in answer.text
    assert "no model of that name answers /v1/embeddings" in embeddings.text
