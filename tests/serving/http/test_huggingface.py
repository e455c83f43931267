"""`huggingface_hub.InferenceClient` calls this server's pipelines; `make test-clients` uses a version before 1.0.

It runs without Clozeline there, so it imports nothing of ours.
"""

from collections.abc import Callable
from importlib.metadata import version

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient

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
