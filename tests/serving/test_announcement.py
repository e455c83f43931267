"""The example line that `clozeline serve` prints once it is ready is one that its own models answer."""

import json
import re

import httpx
import pytest

from clozeline.cli.serve import announce
from clozeline.serving.models import Catalogue


def offered(models: Catalogue, capsys: pytest.CaptureFixture[str]) -> tuple[str, object]:
    """Return the route and body of the printed line."""
    announce("http://here:1", models)
    found = re.search(r"Try +curl -s http://here:1(\S+) .* -d '(.*)'$", capsys.readouterr().out, re.MULTILINE)
    assert found
    return found[1], json.loads(found[2])


@pytest.mark.parametrize(
    ("name", "route"),
    [
        ("encoder", "/fill-mask"),
        ("library", "/classify"),
        ("topics", "/classify"),
        ("ranker", "/classify"),
        ("names", "/tag"),
        ("reader", "/answer"),
        ("writer", "/complete"),
    ],
)
def test_a_server_of_one_model_suggests_the_route_of_that_model(
    client: httpx.Client, catalogue: Catalogue, capsys: pytest.CaptureFixture[str], name: str, route: str
) -> None:
    offer, body = offered(Catalogue([catalogue.named(name)]), capsys)
    assert offer == route
    assert isinstance(body, dict)
    answer = client.post(route, json=body | {"model": name})
    assert (answer.status_code, answer.headers["x-model"]) == (200, name)


@pytest.mark.parametrize(
    ("name", "own"), [("encoder", "/fill-mask"), ("library", "/classify"), ("names", "/tag"), ("writer", "/complete")]
)
def test_a_model_is_listed_with_its_specific_paths(
    catalogue: Catalogue, capsys: pytest.CaptureFixture[str], name: str, own: str
) -> None:
    announce("http://here:1", Catalogue([catalogue.named(name)]))
    first, second, *_ = capsys.readouterr().out.splitlines()[1].split()[1:4]
    assert first == own
    assert second not in {"/tokenize", "/decode", "/info"}


def test_the_encoder_is_offered_first_in_any_order_of_models(
    catalogue: Catalogue, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [catalogue.named(name) for name in ("reader", "library", "encoder")]
    assert offered(Catalogue(models), capsys)[0] == "/fill-mask"


def test_two_text_fields_are_shown_if_every_classifier_reads_pairs(
    catalogue: Catalogue, capsys: pytest.CaptureFixture[str]
) -> None:
    def inputs(*names: str) -> object:
        body = offered(Catalogue([catalogue.named(name) for name in names]), capsys)[1]
        assert isinstance(body, dict)
        return body["inputs"]

    assert isinstance(inputs("ranker"), dict)
    assert isinstance(inputs("ranker", "library"), str)
