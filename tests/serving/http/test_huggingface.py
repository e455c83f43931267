"""`huggingface_hub.InferenceClient` calls this server's pipelines; `make test-clients` uses a version before 1.0.

It runs without Clozeline there, so it imports nothing of ours.
"""

from collections.abc import Callable
from importlib.metadata import version

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient

TEXT = "open the lists of a file"
QUESTION = {"question": "open", "context": "the list of a file, and é"}
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
    drawn = {"max_new_tokens": 12, "temperature": 0.9, "top_p": 0.9, "seed": 4, "do_sample": True, "stop": ["zz"]}
    assert asked.text_generation("return the", return_full_text=True, **drawn).startswith("return the")


def test_the_client_classifies_by_zero_shot_labels(asking: Asking, client: httpx.Client) -> None:
    """Versions before and after 1.0 read two different shapes of answers."""
    is_first = version("huggingface_hub").startswith("0.")
    labels, template = ["list", "file", "é"], "of {}"
    asked = asking(f"zero-shot-classification{'-lists' if is_first else ''}")
    found = asked.zero_shot_classification("open it", labels, multi_label=False, hypothesis_template=template)
    parameters = {"candidate_labels": labels, "hypothesis_template": template}
    own = client.post("/zero-shot", json={"inputs": "open it", "parameters": parameters}).json()
    assert {one.label: one.score for one in found} == pytest.approx({one["label"]: one["score"] for one in own})


def test_the_client_compares_sentences_and_can_use_the_routes_of_text_embeddings_inference(
    asking: Asking, client: httpx.Client
) -> None:
    others = ["the list", "a"]
    cosines = asking("sentence-similarity").sentence_similarity("the list", other_sentences=others)
    assert cosines[0] == pytest.approx(1)
    assert cosines[1] < 0.999
    at_embed, at_similarity = (InferenceClient(str(client.base_url.join(path))) for path in ("/embed", "/similarity"))
    assert at_similarity.sentence_similarity("the list", other_sentences=others) == pytest.approx(cosines, abs=1e-6)
    vectors = client.post("/embed", json={"inputs": TEXT}).json()
    for asked in (at_embed, asking("feature-extraction")):
        found = asked.feature_extraction(TEXT, normalize=True, truncate=True)
        np.testing.assert_allclose(found, vectors, atol=1e-6)


def test_the_client_raises_the_message_of_the_server(asking: Asking) -> None:
    """Versions before and after 1.0 each raise an exception of their own, with the server's message."""
    with pytest.raises(OSError, match=r"\[MASK\] at least once"):
        asking("fill-mask").fill_mask("no mask")


def test_the_client_tags_tokens(asking: Asking, client: httpx.Client) -> None:
    asked = asking("token-classification")
    own = client.post("/tag", json={"inputs": TEXT, "parameters": {"aggregation_strategy": "first"}}).json()
    found = asked.token_classification(TEXT, aggregation_strategy="first")
    keys = ("entity_group", "word", "start", "end")
    assert [[one[key] for key in keys] for one in found] == [[one[key] for key in keys] for one in own] != []
    tokens = asked.token_classification(TEXT, aggregation_strategy="none", ignore_labels=["B-PER"], stride=2)
    assert {token.entity for token in tokens} > {"O"}


def test_the_client_answers_questions(asking: Asking, client: httpx.Client) -> None:
    own = client.post("/answer", json={"inputs": QUESTION}).json()
    asked = asking("question-answering")
    answer = asked.question_answering(**QUESTION)
    assert (answer.answer, answer.start, answer.end) == (own["answer"], own["start"], own["end"])
    lengths = {"max_answer_len": 4, "max_question_len": 8, "max_seq_len": 32, "doc_stride": 8, "top_k": 3}
    assert len(asked.question_answering(**QUESTION, **lengths, handle_impossible_answer=True)) == 3
