"""A request with two questions for a model is one request, and the texts of a client that left are not tokenized."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from clozeline.inference.answerer import Answerer
from clozeline.inference.classifier import Tagger
from clozeline.inference.tokenization import TextTokenizer, TokenizedText
from clozeline.serving import asking as of_texts
from clozeline.serving.admission import Admission
from tests.serving.conftest import Hosted, busy, connection, posted, wait_until


def tensor(name: str, text: str) -> dict[str, object]:
    return {"name": name, "shape": [1], "datatype": "BYTES", "data": [text]}


OUTPUTS = [{"name": "embedding"}, {"name": "token"}]
# Bodies that ask for an embedding of their text and for words for its mask: 4 tokens, twice.
TWICE = {
    "/invocations": {"inputs": ["the [MASK]"]},
    "/v2/models/encoder/infer": {"inputs": [tensor("text", "the [MASK]")], "outputs": OUTPUTS},
}
# Text with too many characters to be tokenized in the event loop.
LONG = "a " * 4_000
# Bodies whose answers need more work after the model has run.
FINISHED = {
    "/tag": {"inputs": LONG},
    "/v2/models/reader/infer": {"inputs": [tensor("question", "a"), tensor("context", LONG)]},
    "/models/names/invocations": {"inputs": [LONG]},
}


class Tokenizing:
    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()


@pytest.fixture
def tokenizing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tokenizing]:
    """Events of the tokenizer, which holds each text of more than 100 characters until `may_end` is set."""
    held = Tokenizing()
    tokenize = TextTokenizer.tokenize

    def waiting(self: TextTokenizer, texts: Sequence[str], *, truncate: bool = False) -> list[TokenizedText]:
        if len(texts[0]) > 100:
            held.begun.set()
            assert held.may_end.wait(timeout=120)
        return tokenize(self, texts, truncate=truncate)

    monkeypatch.setattr(TextTokenizer, "tokenize", waiting)
    yield held
    held.may_end.set()


@pytest.mark.parametrize("path", TWICE)
def test_both_parts_of_a_request_are_admitted_or_neither_and_leave_the_queue_together(
    hosted: Hosted, held: threading.Event, path: str
) -> None:
    with hosted(admission=Admission(max_waiting_tokens=9)) as (client, service), ThreadPoolExecutor(2) as clients:
        running = busy(client, service, clients)
        assert client.post(path, json=TWICE[path], headers={"x-timeout-ms": "50"}).status_code == 504
        assert service.scheduler.waiting_tokens == 0
        waiting = clients.submit(client.post, "/embed", json={"inputs": "a"})
        wait_until(lambda: service.scheduler.waiting_tokens == 3)
        assert client.post(path, json=TWICE[path]).status_code == 429  # 4 more would fit, 8 do not
        assert service.scheduler.waiting_tokens == 3
        held.set()
        assert [answer.result().status_code for answer in (running, waiting)] == [200, 200]
        both = client.post(path, json=TWICE[path])
        assert (both.status_code, both.headers["x-compute-tokens"]) == (200, "8")


def test_a_deadline_applies_while_the_tokenizer_is_busy_with_another_text(
    hosted: Hosted, tokenizing: Tokenizing
) -> None:
    with hosted() as (client, _), ThreadPoolExecutor(1) as clients:
        before = clients.submit(client.post, "/embed", json={"inputs": LONG, "truncate": True})
        assert tokenizing.begun.wait(timeout=120)
        late = client.post("/classify", json={"inputs": LONG, "truncate": True}, headers={"x-timeout-ms": "50"})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_passed")
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200  # short texts do not wait
        tokenizing.may_end.set()
        assert before.result().status_code == 200
        assert 'clozeline_tokenize_seconds_count{model="encoder"} 2.0' in client.get("/metrics").text


@pytest.mark.parametrize("path", ["/embed", "/tokenize"])
def test_a_request_waiting_for_tokenization_is_dropped_when_its_client_leaves(
    hosted: Hosted, tokenizing: Tokenizing, path: str
) -> None:
    with hosted() as (client, service), ThreadPoolExecutor(1) as clients:
        before = clients.submit(client.post, "/embed", json={"inputs": LONG, "truncate": True})
        assert tokenizing.begun.wait(timeout=120)
        with connection(client) as leaving:
            leaving.sendall(posted(path, {"inputs": LONG}))
            wait_until(lambda: service.asking._waiting_characters == 2 * len(LONG))
        wait_until(lambda: 'rejections_total{reason="dropped"} 1.0' in client.get("/metrics").text)
        tokenizing.may_end.set()
        assert before.result().status_code == 200


@pytest.mark.parametrize("path", FINISHED)
def test_a_request_is_not_refused_after_the_model_has_answered(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def closing_after(admitted: Callable[..., object]) -> Callable[..., object]:
        def then(*given: object, **options: object) -> object:
            monkeypatch.setattr(of_texts, "_MAX_WAITING_CHARACTERS", -1)
            return admitted(*given, **options)

        return then

    monkeypatch.setattr(Tagger, "tagging", closing_after(Tagger.tagging))
    monkeypatch.setattr(Answerer, "asking", closing_after(Answerer.asking))
    with hosted() as (client, _):
        assert [client.post(path, json=FINISHED[path]).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("path", ["/tag", "/v2/models/reader/infer"])
def test_a_deadline_applies_after_inference_too_and_delays_no_other_request(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    held = Tokenizing()

    def holding(then: Callable[..., object]) -> Callable[..., object]:
        def waiting(*given: object, **options: object) -> object:
            held.begun.set()
            held.may_end.wait(timeout=120)
            return then(*given, **options)

        return waiting

    monkeypatch.setattr(Tagger, "scored_tokens", holding(Tagger.scored_tokens))
    monkeypatch.setattr(Answerer, "best", holding(Answerer.best))
    with hosted() as (client, _), ThreadPoolExecutor(1) as clients:
        late = clients.submit(client.post, path, json=FINISHED[path], headers={"x-timeout-ms": "1500"})
        assert held.begun.wait(timeout=120)
        assert client.get("/health/live", timeout=60).status_code == 200
        assert late.result(timeout=60).status_code == 504
        held.may_end.set()
