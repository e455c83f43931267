"""Zero-shot over HTTP, with both generations of the hub's client, by cloze and by entailment."""

from pathlib import Path

import httpx
import pytest

from clozeline.registry.sources import parse_sources
from clozeline.serving.http.house_texts import FILLING
from clozeline.serving.loading import open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from clozeline.serving.zero_shot import choosing_by_cloze
from tests.make.packages import classifier_graph, write_package
from tests.serving.conftest import run_app

LABELS = ["list", "file", "é"]


def test_zero_shot_labels_are_ranked_by_fill_mask_scores(client: httpx.Client, catalogue: Catalogue) -> None:
    body = {"inputs": "open it", "parameters": {"candidate_labels": LABELS, "hypothesis_template": "of {}"}}
    answer = client.post("/zero-shot", json=body)
    encoder = catalogue.answering(FILLING).model
    (expected,) = encoder.answers(choosing_by_cloze(encoder, "open it", LABELS, template="of {}"))
    assert answer.headers["x-model"] == "encoder"
    assert [one["label"] for one in answer.json()] == [one.label for one in expected]
    assert [one["score"] for one in answer.json()] == pytest.approx([one.score for one in expected], abs=1e-5)
    assert client.post("/pipeline/zero-shot-classification", json=body).json() == answer.json()


def test_clients_older_than_1_0_get_the_same_scores_as_lists(client: httpx.Client) -> None:
    body = {"inputs": "open it", "parameters": {"candidate_labels": LABELS, "multi_label": False}}
    told = client.post("/pipeline/zero-shot-classification-lists", json=body).json()
    expected = client.post("/pipeline/zero-shot-classification", json=body).json()
    assert told.keys() == {"sequence", "labels", "scores"}
    assert told["sequence"] == "open it"
    assert told["labels"] == [one["label"] for one in expected]
    assert told["scores"] == pytest.approx([one["score"] for one in expected], abs=1e-5)
    assert sum(told["scores"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"candidate_labels": LABELS, "multi_label": True}, "labels_compete"),
        ({"candidate_labels": ["lists"]}, "unknown_target"),
        ({"candidate_labels": LABELS, "hypothesis_template": "no blank"}, "unusable_data"),
        ({"candidate_labels": []}, "invalid_request"),
        ({}, "invalid_request"),
    ],
)
def test_unusable_parameters_are_refused_with_their_error_code(
    client: httpx.Client, parameters: dict[str, object], code: str
) -> None:
    refused = client.post("/zero-shot", json={"inputs": "open it", "parameters": parameters})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, code)


def test_an_entailment_model_takes_precedence_and_can_score_labels_independently(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    labels = ("contradiction", "neutral", "entailment")
    write_package(tmp_path / "nli", "text-classification", classifier_graph(), labels=labels, reads_pairs=True)
    nli = open_source(parse_sources([str(tmp_path / "nli")])[0], "int8")
    service = Service(Capacity(num_workers=1))
    service.open(Catalogue([catalogue.named("encoder"), nli]))
    with run_app(create_app(service)) as client:
        parameters = {"candidate_labels": ["any words at all", "list"], "multi_label": True}
        answer = client.post("/zero-shot", json={"inputs": "open it", "parameters": parameters})
        assert answer.headers["x-model"] == "nli"
        assert sum(one["score"] for one in answer.json()) != pytest.approx(1, abs=1e-3)
        body = {"inputs": "open it", "parameters": {"candidate_labels": LABELS}, "model": "encoder"}
        assert client.post("/zero-shot", json=body).headers["x-model"] == "encoder"
        cards = {card["name"]: card["routes"] for card in client.get("/models").json()["models"]}
        assert all("/zero-shot" in routes for routes in cards.values())


def test_the_route_gives_404_without_a_suitable_model(catalogue: Catalogue) -> None:
    service = Service(Capacity(num_workers=1))
    service.open(Catalogue([catalogue.named("library")]))
    with run_app(create_app(service)) as client:
        refused = client.post("/zero-shot", json={"inputs": "a", "parameters": {"candidate_labels": ["b"]}})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["given"]) == (404, "no_such_model", "no model name")
        assert error["message"] == "no served model answers /zero-shot"  # the request named no model
        assert "/zero-shot" not in client.get("/models").json()["models"][0]["routes"]
