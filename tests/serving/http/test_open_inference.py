"""Triton's client calls models of every kind by the Open Inference Protocol, with tensors in JSON and as raw bytes."""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import InferenceServerException

from clozeline.serving.http.house_labels import CLASSIFYING
from clozeline.serving.http.house_texts import FILLING
from clozeline.serving.models import Catalogue

TEXTS = ["return the list", "é open the file", "a"]
OTHERS = ["the file", "list", "é of"]
QUESTIONS = {"question": ["open", "é return the list"], "context": ["the list of a file, and é", "a file"]}
EITHER_WAY = pytest.mark.parametrize("is_binary", [True, False])


@pytest.fixture(scope="module")
def triton(client: httpx.Client) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(f"{client.base_url.host}:{client.base_url.port}") as triton:
        yield triton


def ask(
    triton: InferenceServerClient,
    model: str,
    inputs: Mapping[str, Sequence[str]],
    outputs: Sequence[str] = (),
    parameters: Mapping[str, object] | None = None,
    *,
    is_binary: bool = True,
    shape: Sequence[int] = (),
) -> InferResult:
    """Send each text input as a tensor. No outputs: those that the server chooses."""
    tensors = []
    for name, texts in inputs.items():
        values = np.array([text.encode() for text in texts], dtype=object).reshape(shape or (len(texts),))
        tensors.append(InferInput(name, values.shape, "BYTES"))
        tensors[-1].set_data_from_numpy(values, binary_data=is_binary)
    wanted = [InferRequestedOutput(name, binary_data=is_binary) for name in outputs]
    return triton.infer(model, tensors, outputs=wanted, parameters=parameters, request_id="7")


def strings(answer: InferResult, name: str) -> list[list[str]]:
    return [[one if isinstance(one, str) else one.decode() for one in row] for row in answer.as_numpy(name)]


def test_the_client_finds_the_server_its_models_and_their_inputs_and_outputs(triton: InferenceServerClient) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.get_server_metadata()["extensions"] == ["binary_tensor_data", "model_configuration"]
    encoder, reader, ranker = (triton.get_model_metadata(name) for name in ("encoder", "reader", "ranker"))
    assert encoder["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert encoder["outputs"][0] == {"name": "embedding", "datatype": "FP32", "shape": [-1, 8]}
    assert [one["name"] for one in ranker["inputs"]] == ["text", "text_pair"]
    datatypes = {"answer": "BYTES", "score": "FP32", "start": "INT64", "end": "INT64"}
    assert {one["name"]: one["datatype"] for one in reader["outputs"]} == datatypes
    told = triton.get_model_config("encoder")
    assert (told["name"], told["platform"], told["max_batch_size"]) == ("encoder", "onnxruntime_onnx", 0)
    assert told["input"] == [{"name": "text", "data_type": "TYPE_STRING", "dims": [-1]}]
    assert told["output"][0] == {"name": "embedding", "data_type": "TYPE_FP32", "dims": [-1, 8]}
    (version,) = encoder["versions"]
    assert triton.get_model_config("encoder", version) == told
    asked = [("encoder",), ("encoder", version), ("encoder", "another"), ("gpt",)]
    assert [triton.is_model_ready(*names) for names in asked] == [True, True, False, False]
    with pytest.raises(InferenceServerException, match="no model of that name is served"):
        triton.get_model_config("gpt")


@EITHER_WAY
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_embeddings_come_in_the_requested_encoding(
    triton: InferenceServerClient, catalogue: Catalogue, is_binary: bool, shape: tuple[int, ...]
) -> None:
    answer = ask(triton, "encoder", {"text": TEXTS}, ["embedding"], is_binary=is_binary, shape=shape)
    assert answer.get_response()["id"] == "7"
    assert ("data" in answer.get_output("embedding")) == (not is_binary)
    expected = catalogue.answering(FILLING).model.embed(TEXTS)
    np.testing.assert_allclose(answer.as_numpy("embedding"), expected, atol=1e-6)


@EITHER_WAY
def test_string_outputs_are_bytes(triton: InferenceServerClient, client: httpx.Client, is_binary: bool) -> None:
    answer = ask(triton, "library", {"text": TEXTS}, ["label"], is_binary=is_binary)
    expected = client.post("/classify", json={"inputs": TEXTS}).json()
    assert strings(answer, "label") == [[label["label"] for label in labels] for labels in expected]


def test_mask_candidates_equal_those_of_fill_mask(triton: InferenceServerClient, client: httpx.Client) -> None:
    texts = ["the [MASK] of", "a [MASK]"]
    answer = ask(triton, "encoder", {"text": texts}, ["token", "score", "embedding"], {"top_k": 2})
    expected = client.post("/fill-mask", json={"inputs": texts, "parameters": {"top_k": 2}}).json()
    assert strings(answer, "token") == [[candidate["token_str"] for candidate in candidates] for candidates in expected]
    assert answer.as_numpy("embedding").shape == (2, 8)


@pytest.mark.parametrize("names", [("text", "text_pair"), ("text_pair", "text")])
def test_a_pair_model_pairs_texts_by_their_position(
    triton: InferenceServerClient, catalogue: Catalogue, names: tuple[str, str]
) -> None:
    inputs = {"text": TEXTS, "text_pair": OTHERS}
    answer = ask(triton, "ranker", {name: inputs[name] for name in names})
    expected = catalogue.answering(CLASSIFYING, "ranker").model.classify([*zip(TEXTS, OTHERS, strict=True)])
    assert len({one.score for (one,) in expected}) == 3
    np.testing.assert_allclose(answer.as_numpy("score"), [[one.score] for (one,) in expected], atol=1e-6)


def test_an_unanswerable_request_is_refused_by_name(triton: InferenceServerClient) -> None:
    long = {"question": ["a"] * 2, "context": ["a " * 50_000] * 2}
    for model, inputs, parameters, outputs, told in (
        ("ranker", {"text": ["a"]}, {}, [], "given: text; expected: text and text_pair;"),
        ("ranker", {"text": ["a"], "text_pair": ["b", "c"]}, {}, [], "1 in `text`, 2 in `text_pair`"),
        ("ranker", {"text": ["a"], "text_pair": [" "]}, {}, [], r"inputs\[1\].data\[0\]"),
        ("ranker", {"text": ["a " * 40], "text_pair": ["b " * 40]}, {}, [], "at most 64 tokens"),
        ("library", {"text": ["a"]}, {}, ["embedding"], "one of: label, score"),
        ("encoder", {"text": ["[MASK] [MASK]"]}, {}, ["token"], "2 masks in text 0"),
        ("reader", long, {"top_k": 100}, [], "at most 16,777,216"),
        ("names", {"text": ["a"]}, {"aggregation_strategy": "last"}, [], "parameters.aggregation_strategy"),
    ):
        with pytest.raises(InferenceServerException, match=told):
            ask(triton, model, inputs, outputs, parameters)


def test_a_tensor_that_contradicts_its_description_is_refused(client: httpx.Client) -> None:
    for more, behind, length in (
        ({"data": ["a", "b"]}, b"", None),
        ({"shape": [2, 2], "data": ["a"] * 4}, b"", None),
        ({"data": ["a"], "datatype": "FP32"}, b"", None),
        ({}, b"", None),
        ({"parameters": {"binary_data_size": 9}}, struct.pack("<I", 1) + b"a", None),
        ({"parameters": {"binary_data_size": 5}}, struct.pack("<I", 2) + b"a", None),
        ({"parameters": {"binary_data_size": 3}}, b"\1\0\0", None),
        ({"parameters": {"binary_data_size": 5}}, struct.pack("<I", 1) + b"\xff", None),
        ({"data": ["a"]}, b"more", None),
        ({"data": ["a"]}, b"", "10000"),
        ({"data": ["a"]}, b"", "-1"),
    ):
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES"} | more
        head = httpx.Request("POST", "http://x", json={"inputs": [tensor]}).content
        headers = {"inference-header-content-length": length or str(len(head))}
        refused = client.post("/v2/models/encoder/infer", content=head + behind, headers=headers)
        assert (refused.status_code, [*refused.json()]) == (400, ["error"])


def test_entities_are_the_json_of_the_tag_route(triton: InferenceServerClient, client: httpx.Client) -> None:
    parameters = {"aggregation_strategy": "none", "stride": 4}
    texts = ["open the lists of a file", "a é"]
    answer = ask(triton, "names", {"text": texts}, ["entities"], parameters)
    expected = client.post("/tag", json={"inputs": texts, "parameters": parameters}).json()
    assert len(expected[0]) > 0
    for (told,), wanted in zip(strings(answer, "entities"), expected, strict=True):
        assert json.loads(told) == [one | {"score": pytest.approx(one["score"], abs=1e-5)} for one in wanted]


def test_answers_equal_those_of_the_answer_route_for_each_question_and_context(
    triton: InferenceServerClient, client: httpx.Client
) -> None:
    parameters: dict[str, Any] = {"top_k": 2, "handle_impossible_answer": True, "max_answer_len": 2}
    names = ("answer", "score", "start", "end")
    answer = ask(triton, "reader", QUESTIONS, names, parameters)
    assert [answer.get_output(name)["datatype"] for name in names] == ["BYTES", "FP32", "INT64", "INT64"]
    for row, (question, context) in enumerate(zip(*QUESTIONS.values(), strict=True)):
        body = {"inputs": {"question": question, "context": context}, "parameters": parameters}
        expected = client.post("/answer", json=body).json()
        assert strings(answer, "answer")[row] == [one["answer"] for one in expected]
        for name in names[1:]:
            assert [*answer.as_numpy(name)[row]] == pytest.approx([one[name] for one in expected], abs=1e-5)


def test_missing_answers_of_a_context_are_empty_and_score_0(triton: InferenceServerClient) -> None:
    assert ask(triton, "reader", QUESTIONS).as_numpy("start").shape == (2, 1)
    inputs = {"question": QUESTIONS["question"], "context": [QUESTIONS["context"][0], "a"]}
    answer = ask(triton, "reader", inputs, parameters={"top_k": 5, "handle_impossible_answer": True})
    told, scores = strings(answer, "answer"), answer.as_numpy("score")
    assert scores[0].all()
    assert ({*told[1][:2]}, told[1][2:]) == ({"a", ""}, ["", "", ""])
    assert (scores[1] > 0).tolist() == [True, True, False, False, False]
