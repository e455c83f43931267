"""OpenAI's own SDK calls this server, and gets the answers and errors that it knows."""

from collections.abc import Iterator
from functools import partial

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI

from clozeline.inference.completer import Decoding
from clozeline.serving.http.house_texts import COMPLETING, FILLING
from clozeline.serving.models import Catalogue


@pytest.fixture(scope="module")
def sdk(client: httpx.Client) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{client.base_url}/v1", api_key="none is asked for", max_retries=0) as sdk:
        yield sdk


def test_the_sdk_requests_base64_by_default_and_gets_the_same_vectors(sdk: OpenAI, catalogue: Catalogue) -> None:
    texts = ["return the list", "open the file of the list", "a"]
    by_base64 = sdk.embeddings.create(model="encoder", input=texts)
    by_float = sdk.embeddings.create(model="encoder", input=texts, encoding_format="float")
    assert ([one.index for one in by_base64.data], by_base64.model) == ([0, 1, 2], "encoder")
    vectors = [np.array([one.embedding for one in answer.data], dtype=np.float32) for answer in (by_base64, by_float)]
    np.testing.assert_array_equal(*vectors)
    np.testing.assert_allclose(vectors[0], catalogue.answering(FILLING).model.embed(texts), atol=1e-6)


def test_fewer_dimensions_are_the_first_ones_renormalized(sdk: OpenAI) -> None:
    whole, cut = (
        np.array(sdk.embeddings.create(model="encoder", input="the list", dimensions=number).data[0].embedding)
        for number in (8, 3)
    )
    np.testing.assert_allclose(cut, whole[:3] / np.linalg.norm(whole[:3]), atol=1e-6)


def test_usage_counts_tokens_including_special_ones_of_a_thousand_texts(sdk: OpenAI) -> None:
    answer = sdk.embeddings.create(model="encoder", input=["return the list", *["a"] * 999])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 5 + 999 * 3
    assert len(answer.data) == 1000


def test_the_sdk_completes_prompts_and_usage_counts_prompt_and_completion_tokens(
    sdk: OpenAI, catalogue: Catalogue
) -> None:
    prompts = ["return the list", "a"]
    expected = catalogue.answering(COMPLETING).model.complete(prompts, Decoding(6))
    answer = sdk.completions.create(model="writer", prompt=prompts, max_tokens=6, temperature=0)
    assert (answer.object, answer.model) == ("text_completion", "writer")
    assert [(one.index, one.text, one.finish_reason) for one in answer.choices] == [
        (index, one.text, one.finish_reason) for index, one in enumerate(expected)
    ]
    assert answer.usage
    num_new = sum(len(one.tokens) for one in expected)
    used = (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)
    assert used == (4 + 2, num_new, 4 + 2 + num_new)


def test_completions_are_sampled_by_default_and_follow_the_seed(sdk: OpenAI, catalogue: Catalogue) -> None:
    for seed in (1, 2):
        decoding = Decoding(12, temperature=1.0, seed=seed)
        (expected,) = catalogue.answering(COMPLETING).model.complete(["return"], decoding)
        answer = sdk.completions.create(model="writer", prompt="return", max_tokens=12, seed=seed)
        assert answer.choices[0].text == expected.text
    assert sdk.completions.create(model="writer", prompt="a", echo=True).choices[0].text.startswith("a")


def test_an_unusable_parameter_is_a_bad_request_that_names_it(sdk: OpenAI) -> None:
    complete, embed = partial(sdk.completions.create, model="writer"), partial(sdk.embeddings.create, model="encoder")
    for ask, given, code, param in (
        (complete, {"prompt": ["a", "a " * 100]}, "text_too_long", "prompt[1]"),
        (complete, {"prompt": "a", "stop": ["a"] * 5}, "invalid_request", "stop"),
        (complete, {"prompt": "a", "n": 2}, "invalid_request", "n"),
        (complete, {"prompt": "a", "stream": True}, "invalid_request", "stream"),
        (complete, {"prompt": "a", "logprobs": 3}, "unknown_key", "logprobs"),
        (embed, {"input": ["a", " "]}, "invalid_request", "input[1]"),
        (embed, {"input": [101, 7592]}, "invalid_request", "input"),
        (embed, {"input": "a", "dimensions": 9}, "too_many_dimensions", "dimensions"),
    ):
        with pytest.raises(openai.BadRequestError) as raised:
            ask(**given)
        assert (raised.value.code, raised.value.param, raised.value.type) == (code, param, "invalid_request_error")


def test_null_means_the_default(client: httpx.Client) -> None:
    unset = {"max_tokens": None, "temperature": None, "stop": None, "logprobs": None, "presence_penalty": 0}
    body = {"model": "writer", "prompt": "a"}
    missing, null = (client.post("/v1/completions", json=body | more).raise_for_status() for more in ({}, unset))
    assert missing.json() == null.json()


def test_the_sdk_lists_models_and_retrieves_one(sdk: OpenAI) -> None:
    assert [model.id for model in sdk.models.list()][:2] == ["encoder", "library"]
    assert sdk.models.retrieve("library").object == "model"


def test_a_missing_model_or_one_of_another_kind_is_not_found(sdk: OpenAI) -> None:
    for name in ("gpt", "library"):
        with pytest.raises(openai.NotFoundError, match="encoder") as raised:
            sdk.embeddings.create(model=name, input="a")
        assert (raised.value.code, raised.value.type) == ("model_not_found", "invalid_request_error")


def test_token_ids_are_refused_with_the_remedy(client: httpx.Client) -> None:
    """By default LangChain sends the ids of OpenAI's tokenizer, which our vocabulary would read as other words."""
    refused = client.post("/v1/embeddings", json={"model": "encoder", "input": [[5, 6, 7]]})
    assert "check_embedding_ctx_length=False" in refused.json()["error"]["message"]


def test_a_completion_ends_before_a_stop_string(sdk: OpenAI) -> None:
    def said(**more: object) -> str:
        return str(sdk.completions.create(model="writer", prompt="return", temperature=0, **more).choices[0].text)

    whole = said(stop="\n")
    stop = whole[3:5]
    assert said(stop=stop) == said(stop=["never there", stop]) == whole[: whole.index(stop)]
