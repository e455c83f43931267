"""/complete continues texts by a causal model, token by token, within the limits of every other request."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import httpx
import pytest
from starlette.types import ASGIApp

from clozeline.inference.completer import Completer, Decoding
from clozeline.inference.open_model import Rows
from clozeline.inference.tokenization import TokenizedText
from clozeline.serving.admission import Admission
from clozeline.serving.http.house_texts import COMPLETING
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.serving.conftest import wait_until

Server = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]
TEXTS = ["return the list", "open the file of a", "a"]


@pytest.fixture(scope="module")
def completer(catalogue: Catalogue) -> Completer:
    return catalogue.answering(COMPLETING).model


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Event that every run of a causal model waits for."""
    release = threading.Event()
    rows = Completer.rows

    def waiting(self: Completer, texts: Sequence[TokenizedText], output: str) -> list[Rows]:
        assert release.wait(timeout=120)
        return rows(self, texts, output)

    monkeypatch.setattr(Completer, "rows", waiting)
    yield release
    release.set()


def service_of(catalogue: Catalogue, admission: Admission | None = None) -> Service:
    service = Service(Capacity(num_workers=1, admission=admission or Admission()))
    service.open(catalogue)
    return service


def test_the_route_completes_texts_as_the_library_does(client: httpx.Client, completer: Completer) -> None:
    expected = completer.complete(TEXTS)
    answer = client.post("/complete", json={"inputs": TEXTS})
    assert [(one["generated_text"], one["finish_reason"], one["num_tokens"]) for one in answer.json()] == [
        (one.text, one.finish_reason, len(one.tokens)) for one in expected
    ]
    assert answer.headers["x-model"] == "writer"
    one = client.post("/complete", json={"inputs": TEXTS[0]}).json()
    assert one["generated_text"] == expected[0].text


def test_sampling_does_not_depend_on_other_texts(client: httpx.Client, completer: Completer) -> None:
    parameters = {"max_new_tokens": 12, "temperature": 1.0, "top_p": 0.9, "seed": 5}
    expected = completer.complete(TEXTS, Decoding(12, 1.0, 0.9, 5))

    def ask(text: str) -> str:
        body = {"inputs": text, "parameters": parameters}
        return str(client.post("/complete", json=body).json()["generated_text"])

    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(ask, TEXTS * 8))
    assert found == [one.text for one in expected] * 8


def test_sampling_parameters_behave_as_in_hugging_face(client: httpx.Client) -> None:
    def said(**parameters: object) -> str:
        body = {"inputs": "return", "parameters": {"max_new_tokens": 12, **parameters}}
        return str(client.post("/complete", json=body).json()["generated_text"])

    greedy = said()
    assert said(do_sample=False, temperature=1.0, seed=1) == greedy
    assert said(do_sample=True, seed=1) == said(temperature=1.0, seed=1) != greedy
    assert said(return_full_text=True) == f"return{greedy}"
    assert said(stop=[greedy[2:4]]) == greedy[: greedy.index(greedy[2:4])]


def test_tokens_of_every_generation_step_are_counted(client: httpx.Client, completer: Completer) -> None:
    (one,) = completer.complete(["return the list"], Decoding(max_tokens=4))
    assert len(one.tokens) == 4
    body = {"inputs": "return the list", "parameters": {"max_new_tokens": 4}}
    assert client.post("/complete", json=body).headers["x-compute-tokens"] == str(4 + 5 + 6 + 7)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"inputs": "a", "parameters": {"max_new_tokens": 0}}, 422, "parameters.max_new_tokens"),
        ({"inputs": "a", "parameters": {"max_new_tokens": 1025}}, 422, "parameters.max_new_tokens"),
        ({"inputs": "a", "parameters": {"temperature": -1}}, 422, "parameters.temperature"),
        ({"inputs": "a", "parameters": {"top_p": 0}}, 422, "parameters.top_p"),
        ({"inputs": "a", "parameters": {"seed": -1}}, 422, "parameters.seed"),
        ({"inputs": "a", "parameters": {"stop": [""]}}, 422, "parameters.stop[0]"),
        ({"inputs": "a", "parameters": {"stop": ["a"] * 5}}, 422, "parameters.stop"),
        ({"inputs": "a", "parameters": {"num_beams": 4}}, 422, "parameters.num_beams"),
        ({"inputs": ["a", "a " * 100]}, 422, "inputs[1]"),
        ({"inputs": "a", "model": "encoder"}, 404, "model"),
    ],
)
def test_an_unusable_parameter_is_named(client: httpx.Client, body: dict[str, object], status: int, param: str) -> None:
    answer = client.post("/complete", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_long_text_is_cut_at_the_start_on_request(client: httpx.Client) -> None:
    body = {"inputs": "a " * 100, "truncate": True, "parameters": {"max_new_tokens": 2}}
    assert client.post("/complete", json=body).json()["num_tokens"] == 2


@pytest.mark.parametrize("path", ["/fill-mask", "/zero-shot", "/pipeline/fill-mask"])
def test_a_causal_model_refuses_fill_mask_on_every_route(client: httpx.Client, path: str) -> None:
    body = {"inputs": "the [MASK]", "parameters": {"candidate_labels": ["a", "b"]} if path == "/zero-shot" else {}}
    answer = client.post(f"/models/writer{path}", json=body)
    assert answer.status_code == 404
    cards = {card["name"]: card for card in client.get("/models").json()["models"]}
    assert path not in cards["writer"]["routes"]
    assert {"/complete", "/v1/completions", "/pipeline/text-generation", "/embed"} <= set(cards["writer"]["routes"])


def test_one_deadline_applies_to_all_generation_steps(
    serving: Server, catalogue: Catalogue, held: threading.Event
) -> None:
    service = service_of(catalogue)
    with serving(create_app(service)) as client:
        answer = client.post("/complete", json={"inputs": "a"}, headers={"x-timeout-ms": "50"})
        assert answer.status_code == 504
        assert service.scheduler.waiting_tokens == 0


def test_a_started_completion_is_not_refused_between_steps(
    serving: Server, catalogue: Catalogue, held: threading.Event
) -> None:
    """The line is as full as it may be when the second token is asked for."""
    service = service_of(catalogue, Admission(max_waiting_tokens=4))
    with serving(create_app(service)) as client, ThreadPoolExecutor(3) as clients:
        begun = clients.submit(client.post, "/complete", json={"inputs": "a b c"})
        wait_until(lambda: service.workers.num_running == 1)
        waiting = clients.submit(client.post, "/complete", json={"inputs": "a b c"})
        wait_until(lambda: service.scheduler.waiting_tokens == 4)
        assert client.post("/complete", json={"inputs": "a"}).status_code == 429
        held.set()
        assert [answer.result().status_code for answer in (begun, waiting)] == [200, 200]


def test_confidence_counts_only_generated_tokens(serving: Server, catalogue: Catalogue) -> None:
    with serving(create_app(service_of(catalogue))) as client:
        client.post("/complete", json={"inputs": "a", "parameters": {"max_new_tokens": 3}})
        assert 'clozeline_confidence_count{model="writer"} 3.0' in client.get("/metrics").text
