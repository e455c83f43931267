"""Feedback scores what each kind of model answered."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.serving.http.test_bodies import assert_envelope

TEXT = "Maria Lopez lives in Oslo."
QUESTION = {"question": "Where does Maria live?", "context": f"{TEXT} She works in Rome."}
PERSON = {"entity_group": "PER", "start": 1, "end": 2}


def entities(answer: Any) -> list[dict[str, Any]]:
    return [{name: entity[name] for name in PERSON} for entity in reversed(answer)]


@pytest.mark.parametrize(
    ("path", "inputs", "best", "wrong"),
    [
        ("/classify", TEXT, lambda answer: answer[0][0]["label"], "another label"),
        ("/tag", TEXT, entities, [PERSON]),
        ("/answer", QUESTION, lambda answer: answer["answer"], "another span"),
        ("/fill-mask", "the [MASK]", lambda answer: answer[0]["token_str"], "another word"),
    ],
)
def test_the_best_answer_is_right_and_another_is_wrong(
    client: httpx.Client, path: str, inputs: object, best: Callable[[Any], Any], wrong: object
) -> None:
    for is_right in (True, False):
        asked = client.post(path, json={"inputs": inputs}).raise_for_status()
        right = best(asked.json()) if is_right else wrong
        told = {"request_id": asked.headers["x-request-id"], "right": [right]}
        scored = client.post("/feedback", json=told).raise_for_status().json()
        assert (scored["num_right"], scored["num_wrong"]) == (int(is_right), int(not is_right))
        assert client.post("/feedback", json=told).status_code == 404, "counts once"


@pytest.mark.parametrize(("path", "right"), [("/tag", "PER"), ("/classify", []), ("/fill-mask", [])])
def test_right_answers_of_another_kind_are_refused(client: httpx.Client, path: str, right: object) -> None:
    asked = client.post(path, json={"inputs": "the [MASK]"}).raise_for_status()
    told = {"request_id": asked.headers["x-request-id"], "right": [right]}
    assert_envelope(client.post("/feedback", json=told), 422, "other_answers", "right")


def test_single_tags_cannot_be_scored(client: httpx.Client) -> None:
    asked = client.post("/tag", json={"inputs": TEXT, "parameters": {"aggregation_strategy": "none"}})
    assert "x-request-id" not in asked.raise_for_status().headers
