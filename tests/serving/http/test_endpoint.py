"""Checks of a request before its protocol sees it: its content type, its timeout, and the schema of its body."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.metadata import version

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from starlette.types import ASGIApp

from clozeline.serving.asking import TIMES
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.serving.conftest import run_app
from tests.serving.test_metrics import counted

Serving = Callable[[ASGIApp], AbstractContextManager[httpx.Client]]
PLAIN = {"content-type": "application/json"}
UNREAD = ({"content-type": "text/plain"}, PLAIN | {"content-encoding": "gzip"})
FAULTY = {
    "no JSON": b'{"inputs": ',
    "a lone surrogate": b'{"inputs": "\\ud800"}',
    "nothing": b"",
    "null": b"null",
    "another key": b'{"input": "a text"}',
    "a number for a text": b'{"inputs": 7}',
    "what Python cannot write": b'{"inputs": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "a key of a million characters": b'{"' + b"k" * 1_000_000 + b'": 1, "inputs": "a text"}',
    "a model that is not there": b'{"inputs": "a text", "model": "nobody"}',
    "a text that is too long": b'{"inputs": "' + b"text " * 400 + b'"}',
}


@pytest.mark.parametrize("body", FAULTY.values(), ids=FAULTY)
def test_a_body_of_the_wrong_shape_gets_a_short_refusal(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/embed", content=body, headers=PLAIN)
    assert answer.status_code in {400, 404, 422}
    assert len(answer.content) < 2000


def test_the_first_of_two_content_types_counts(client: httpx.Client) -> None:
    types = [("content-type", "text/plain"), ("content-type", "application/json")]
    assert client.post("/embed", content=b'{"inputs": "a text"}', headers=types).status_code == 415


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/json; charset=utf-16"}, 415),
        ({"content-type": "text/plain"}, 415),
        ({}, 415),
        (PLAIN | {"x-timeout-ms": "5000"}, 200),
        (PLAIN | {"x-timeout-ms": "soon"}, 422),
        (PLAIN | {"content-encoding": "identity"}, 200),
        (PLAIN | {"content-encoding": "gzip"}, 415),
    ],
    ids=[
        "another name of JSON",
        "other letters",
        "text",
        "no type",
        "a timeout",
        "no timeout",
        "as it is",
        "compressed",
    ],
)
def test_a_body_is_read_only_with_a_json_content_type(
    client: httpx.Client, headers: dict[str, str], status: int
) -> None:
    assert client.post("/embed", content=b'{"inputs": "a text"}', headers=headers).status_code == status


def test_a_body_of_the_wrong_type_is_refused_even_if_its_bytes_are_cached(
    catalogue: Catalogue, serving: Serving
) -> None:
    service = Service(Capacity(num_workers=1, cache_bytes=1 << 20))
    service.open(catalogue)
    with serving(create_app(service)) as client:
        answers = [client.post("/embed", json={"inputs": "a text"}) for _ in range(2)]
        content = answers[0].request.content
        unread = [client.post("/embed", content=content, headers=headers).status_code for headers in UNREAD]
    assert [answer.headers.get("x-cache") for answer in answers] == [None, "hit"]
    assert answers[0].content == answers[1].content
    assert unread == [415, 415]


def test_a_request_is_counted_under_its_route(client: httpx.Client) -> None:
    def counted() -> float:
        lines = client.get("/metrics").text.splitlines()
        line = next(line for line in lines if line.startswith('clozeline_requests_total{route="/embed",status="200"}'))
        return float(line.rpartition(" ")[2])

    client.post("/embed", json={"inputs": "a text"})
    before = counted()
    client.post("/embed", json={"inputs": "a text"})
    assert counted() == before + 1


BODY = b'{"inputs": "the list"}'
JSON = {"content-type": "application/json"}


@pytest.fixture
def keeping(catalogue: Catalogue) -> Iterator[httpx.Client]:
    """Client of a server with a cache that holds the answer to BODY."""
    service = Service(Capacity(num_workers=1, cache_bytes=1 << 20))
    service.open(catalogue)
    with run_app(create_app(service)) as client:
        assert "x-cache" not in client.post("/embed", content=BODY, headers=JSON).headers
        yield client


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({}, 415),
        (JSON | {"x-timeout-ms": "abc"}, 422),
        (JSON | {"x-timeout-ms": "0"}, 422),
        (JSON | {"x-timeout-ms": ""}, 422),
    ],
    ids=["text", "no type", "a word for a time", "no time at all", "an empty time"],
)
def test_an_invalid_request_is_refused_although_its_answer_is_cached(
    keeping: httpx.Client, client: httpx.Client, headers: dict[str, str], status: int
) -> None:
    answers = [each.post("/embed", content=BODY, headers=headers) for each in (keeping, client)]
    assert [answer.status_code for answer in answers] == [status, status]
    assert answers[0].content == answers[1].content


def test_a_request_with_a_timeout_gets_the_cached_answer_too(keeping: httpx.Client) -> None:
    answer = keeping.post("/embed", content=BODY, headers=JSON | {"x-timeout-ms": "5000"})
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "hit")


def test_an_answer_at_another_level_is_another_answer(keeping: httpx.Client) -> None:
    assert "x-cache" not in keeping.post("/embed?level=other", content=BODY, headers=JSON).headers


def test_a_cached_answer_reports_zero_times(keeping: httpx.Client) -> None:
    again = keeping.post("/embed", content=BODY, headers=JSON)
    assert again.headers["x-cache"] == "hit"
    assert [float(again.headers[name]) for name in TIMES] == [0, 0, 0, 0]
    assert again.headers["x-compute-tokens"] == "4"


def test_a_cached_answer_adds_no_times_to_a_route_without_them(keeping: httpx.Client) -> None:
    first, again = (keeping.post("/tokenize", content=BODY, headers=JSON) for _ in range(2))
    assert ("x-cache" in first.headers, again.headers["x-cache"]) == (False, "hit")
    assert again.headers.keys() - first.headers.keys() == {"x-cache"}


def test_cache_hits_and_misses_are_counted(keeping: httpx.Client) -> None:
    for _ in range(3):
        keeping.post("/embed", content=BODY, headers=JSON)
    counts = counted(keeping)
    assert counts["clozeline_kept_answers_total{result=miss}"] == 1
    assert counts["clozeline_kept_answers_total{result=hit}"] == 3


SENTENCES = {"inputs": {"source_sentence": "the list", "sentences": ["the list", "a"]}}
Asking = Callable[[str], InferenceClient]


@pytest.fixture(scope="module")
def asking(client: httpx.Client) -> Asking:
    """Function from a task to its `InferenceClient`, which posts to exactly the URL it is given."""
    return lambda task: InferenceClient(model=str(client.base_url.join(f"/pipeline/{task}")))


def test_the_client_fills_a_mask(asking: Asking) -> None:
    candidates = asking("fill-mask").fill_mask("the [MASK] of", top_k=3)
    assert len(candidates) == 3
    assert 0 < candidates[0].score < 1
    assert candidates[0].sequence != "the [MASK] of"
    competing = asking("fill-mask").fill_mask("the [MASK] of", targets=["list", "file"])
    assert {candidate.token_str for candidate in competing} == {"list", "file"}


def test_the_client_generates_text(asking: Asking, client: httpx.Client) -> None:
    own = client.post("/complete", json={"inputs": "return the", "parameters": {"max_new_tokens": 6}}).json()
    asked = asking("text-generation")
    assert asked.text_generation("return the", max_new_tokens=6) == own["generated_text"]
    drawn = {"max_new_tokens": 12, "temperature": 0.9, "top_p": 0.9, "seed": 4}
    first = asked.text_generation("return the", do_sample=True, stop=["zz"], return_full_text=True, **drawn)
    assert first == asked.text_generation("return the", do_sample=True, stop=["zz"], return_full_text=True, **drawn)
    assert first.startswith("return the")


def test_the_client_extracts_features(asking: Asking) -> None:
    vectors = asking("feature-extraction").feature_extraction("open the file", normalize=True, truncate=True)
    assert (vectors.shape, vectors.dtype) == ((1, 8), np.float32)
    assert np.linalg.norm(vectors) == pytest.approx(1)


def test_the_client_classifies_with_every_score_function(asking: Asking) -> None:
    client = asking("text-classification")
    scores = {
        function: [label.score for label in client.text_classification("open the file", function_to_apply=function)]
        for function in ("softmax", "sigmoid", "none")
    }
    logits = np.array(scores["none"])
    assert sum(scores["softmax"]) == pytest.approx(1)
    np.testing.assert_allclose(scores["softmax"], np.exp(logits) / np.exp(logits).sum(), atol=1e-6)
    np.testing.assert_allclose(scores["sigmoid"], 1 / (1 + np.exp(-logits)), atol=1e-6)
    assert len(client.text_classification("open the file", top_k=2)) == 2


def test_a_client_selects_a_second_model_of_a_kind_by_base_url(client: httpx.Client) -> None:
    asked = InferenceClient(model=str(client.base_url.join("/models/topics/pipeline/text-classification")))
    labels = asked.text_classification("open the file")
    assert {label.label for label in labels} == {"sport", "money", "health", "travel"}


def test_the_client_compares_sentences(asking: Asking) -> None:
    cosines = asking("sentence-similarity").sentence_similarity("the list", other_sentences=["the list", "a"])
    assert cosines[0] == pytest.approx(1)
    assert cosines[1] < 0.999


def test_the_client_classifies_by_zero_shot_labels(asking: Asking, client: httpx.Client) -> None:
    """Versions before and after 1.0 read two different shapes of answers."""
    is_first = version("huggingface_hub").startswith("0.")
    labels, template = ["list", "file", "é"], "of {}"
    asked = asking(f"zero-shot-classification{'-lists' if is_first else ''}")
    found = asked.zero_shot_classification("open it", labels, multi_label=False, hypothesis_template=template)
    parameters = {"candidate_labels": labels, "hypothesis_template": template}
    own = client.post("/zero-shot", json={"inputs": "open it", "parameters": parameters}).json()
    assert {one.label: one.score for one in found} == pytest.approx({one["label"]: one["score"] for one in own})
    assert sum(one.score for one in found) == pytest.approx(1)


def test_the_client_can_use_the_routes_of_text_embeddings_inference(client: httpx.Client) -> None:
    def asking_at(path: str) -> InferenceClient:
        return InferenceClient(model=str(client.base_url.join(path)))

    vectors = asking_at("/embed").feature_extraction("open the file")
    np.testing.assert_allclose(vectors, client.post("/embed", json={"inputs": "open the file"}).json(), atol=1e-6)
    cosines = asking_at("/similarity").sentence_similarity("the list", other_sentences=["the list", "a"])
    assert cosines == pytest.approx(client.post("/similarity", json=SENTENCES).json(), abs=1e-6)


def test_the_client_raises_the_message_of_the_server(asking: Asking) -> None:
    """Versions before and after 1.0 each raise an exception of their own, with the server's message."""
    with pytest.raises(OSError, match=r"\[MASK\] at least once"):
        asking("fill-mask").fill_mask("no mask")


def test_the_pipeline_route_nests_labels_and_the_predict_route_does_not(client: httpx.Client) -> None:
    nested = client.post("/pipeline/text-classification", json={"inputs": "a", "parameters": {"top_k": 3}}).json()
    assert [len(labels) for labels in nested] == [3]
    assert client.post("/predict", json={"inputs": "a"}).json() == nested[0]


def test_the_client_tags_tokens(asking: Asking, client: httpx.Client) -> None:
    text = "open the lists of a file"
    asked = asking("token-classification")
    own = client.post("/tag", json={"inputs": text, "parameters": {"aggregation_strategy": "first"}}).json()
    found = asked.token_classification(text, aggregation_strategy="first")
    assert [(one.entity_group, one.word, one.start, one.end) for one in found] == [
        (one["entity_group"], one["word"], one["start"], one["end"]) for one in own
    ]
    assert found
    tokens = asked.token_classification(text, aggregation_strategy="none", ignore_labels=["B-PER"], stride=2)
    assert {token.entity for token in tokens} > {"O"}
    assert all(token.entity_group is None for token in tokens)


def test_the_client_answers_questions(asking: Asking, client: httpx.Client) -> None:
    question, context = "open", "the list of a file, and é"
    own = client.post("/answer", json={"inputs": {"question": question, "context": context}}).json()
    asked = asking("question-answering")
    answer = asked.question_answering(question=question, context=context)
    assert (answer.answer, answer.start, answer.end) == (own["answer"], own["start"], own["end"])
    assert answer.score == pytest.approx(own["score"], abs=1e-5)
    several = asked.question_answering(
        question=question,
        context=context,
        top_k=3,
        handle_impossible_answer=True,
        max_answer_len=4,
        max_question_len=8,
        max_seq_len=32,
        doc_stride=8,
        align_to_words=False,
    )
    assert len(several) == 3
