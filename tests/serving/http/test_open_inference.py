"""Triton's client calls models of every kind by the Open Inference Protocol, with tensors in JSON and as raw bytes."""

import json
import struct
from collections.abc import Iterator, Sequence

import httpx
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import InferenceServerException

from clozeline.serving.http.house_labels import CLASSIFYING
from clozeline.serving.http.house_texts import FILLING
from clozeline.serving.models import Catalogue

TEXTS = ["return the list", "é open the file", "a"]


@pytest.fixture(scope="module")
def triton(client: httpx.Client) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(f"{client.base_url.host}:{client.base_url.port}") as triton:
        yield triton


def tensor(
    texts: Sequence[str], name: str = "text", *, is_binary: bool = True, shape: Sequence[int] = ()
) -> InferInput:
    values = np.array([text.encode() for text in texts], dtype=object).reshape(shape or (len(texts),))
    made = InferInput(name, values.shape, "BYTES")
    made.set_data_from_numpy(values, binary_data=is_binary)
    return made


def strings(answer: InferResult, name: str) -> list[list[str]]:
    return [[one if isinstance(one, str) else one.decode() for one in row] for row in answer.as_numpy(name)]


def test_the_client_finds_the_server_and_its_models(triton: InferenceServerClient, client: httpx.Client) -> None:
    version = client.get("/models").json()["models"][0]["version"]
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("encoder")
    assert triton.is_model_ready("encoder", version)
    assert not triton.is_model_ready("encoder", "another")
    assert not triton.is_model_ready("gpt")
    assert triton.get_server_metadata()["extensions"] == ["binary_tensor_data", "model_configuration"]


def test_metadata_lists_the_inputs_and_outputs_of_a_model(triton: InferenceServerClient) -> None:
    encoder, library, names, reader = (
        triton.get_model_metadata(name) for name in ("encoder", "library", "names", "reader")
    )
    assert encoder["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert encoder["outputs"][0] == {"name": "embedding", "datatype": "FP32", "shape": [-1, 8]}
    assert [output["name"] for output in library["outputs"]] == ["label", "score"]
    assert triton.get_model_metadata("encoder", encoder["versions"][0]) == encoder
    assert names["inputs"] == encoder["inputs"]
    assert names["outputs"] == [{"name": "entities", "datatype": "BYTES", "shape": [-1, 1]}]
    assert [one["name"] for one in reader["inputs"]] == ["question", "context"]
    datatypes = {"answer": "BYTES", "score": "FP32", "start": "INT64", "end": "INT64"}
    assert {one["name"]: one["datatype"] for one in reader["outputs"]} == datatypes


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_embeddings_come_in_the_requested_encoding(
    triton: InferenceServerClient, catalogue: Catalogue, is_binary: bool, shape: tuple[int, ...]
) -> None:
    answer = triton.infer(
        "encoder",
        [tensor(TEXTS, is_binary=is_binary, shape=shape)],
        outputs=[InferRequestedOutput("embedding", binary_data=is_binary)],
        request_id="7",
    )
    assert answer.get_response()["id"] == "7"
    assert ("data" in answer.get_output("embedding")) == (not is_binary)
    expected = catalogue.answering(FILLING).model.embed(TEXTS)
    np.testing.assert_allclose(answer.as_numpy("embedding"), expected, atol=1e-6)


@pytest.mark.parametrize("is_binary", [True, False])
def test_string_outputs_are_bytes(triton: InferenceServerClient, client: httpx.Client, is_binary: bool) -> None:
    outputs = [InferRequestedOutput(name, binary_data=is_binary) for name in ("label", "score")]
    answer = triton.infer("library", [tensor(TEXTS, is_binary=is_binary)], outputs=outputs)
    labels, scores = answer.as_numpy("label"), answer.as_numpy("score")
    assert labels.shape == scores.shape == (3, 3)
    expected = client.post("/classify", json={"inputs": TEXTS}).json()
    assert strings(answer, "label") == [[label["label"] for label in labels] for labels in expected]
    np.testing.assert_allclose(scores, [[label["score"] for label in labels] for labels in expected], atol=1e-6)


def test_outputs_are_binary_if_the_client_requests_none_by_name(triton: InferenceServerClient) -> None:
    answer = triton.infer("library", [tensor(TEXTS)], parameters={"top_k": 1})
    assert answer.as_numpy("label").shape == (3, 1)
    assert answer.as_numpy("score").dtype == np.float32


def test_mask_candidates_equal_those_of_fill_mask(triton: InferenceServerClient, client: httpx.Client) -> None:
    texts = ["the [MASK] of", "a [MASK]"]
    outputs = [InferRequestedOutput("token"), InferRequestedOutput("score"), InferRequestedOutput("embedding")]
    answer = triton.infer("encoder", [tensor(texts)], outputs=outputs, parameters={"top_k": 2})
    expected = client.post("/fill-mask", json={"inputs": texts, "parameters": {"top_k": 2}}).json()
    assert strings(answer, "token") == [[candidate["token_str"] for candidate in candidates] for candidates in expected]
    assert answer.as_numpy("embedding").shape == (2, 8)


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("step", [1, -1])
def test_a_pair_model_pairs_texts_by_their_position(
    triton: InferenceServerClient, catalogue: Catalogue, is_binary: bool, step: int
) -> None:
    names = [one["name"] for one in triton.get_model_metadata("ranker")["inputs"]]
    assert names == ["text", "text_pair"]
    others = ["the file", "list", "é of"]
    tensors = [tensor(texts, name, is_binary=is_binary) for name, texts in zip(names, (TEXTS, others), strict=True)]
    answer = triton.infer("ranker", tensors[::step])
    expected = catalogue.answering(CLASSIFYING, "ranker").model.classify([*zip(TEXTS, others, strict=True)])
    assert len({one.score for (one,) in expected}) == 3
    np.testing.assert_allclose(answer.as_numpy("score"), [[one.score] for (one,) in expected], atol=1e-6)


REFUSED = [
    ("ranker", {"text": ["a"]}, {}, [], "given: text; expected: text and text_pair;"),
    ("library", {"text": ["a"], "text_pair": ["b"]}, {}, [], "given: text, text_pair; expected: text;"),
    ("ranker", {"text": ["a"], "text_pair": ["b", "c"]}, {}, [], "1 in `text`, 2 in `text_pair`"),
    ("ranker", {"text": ["a"], "text_pair": [" "]}, {}, [], r"inputs\[1\].data\[0\]"),
    ("ranker", {"text": ["a " * 40], "text_pair": ["b " * 40]}, {}, [], "at most 64 tokens"),
    ("gpt", {"text": ["a"]}, {}, [], "one of: encoder, library"),
    ("library", {"text": ["a"]}, {}, ["embedding"], "one of: label, score"),
    ("names", {"text": ["a"]}, {}, ["label"], "one of: entities;"),
    ("reader", {"question": ["a"], "context": ["a"]}, {}, ["label"], "one of: answer, score, start, end;"),
    ("encoder", {"text": ["a"]}, {}, ["token"], r"\[MASK\] at least once"),
    ("encoder", {"text": ["[MASK] [MASK]"]}, {}, ["token"], "2 masks in text 0"),
    ("encoder", {"text": ["a", ""]}, {}, [], r"inputs\[0\].data\[1\]"),
    ("encoder", {"text": ["a", "a " * 100]}, {}, [], "at most 64 tokens"),
    ("names", {"question": ["a"]}, {}, [], "given: question; expected: text;"),
    ("reader", {"text": ["a"]}, {}, [], "given: text; expected: question and context;"),
    ("reader", {"question": ["a"]}, {}, [], "given: question; expected: question and context;"),
    ("encoder", {"text": ["a"], "context": ["a"]}, {}, [], "given: text, context; expected: text;"),
    ("reader", {"question": ["a", "b"], "context": ["a"]}, {}, [], "2 in `question`, 1 in `context`"),
    ("reader", {"question": ["a"], "context": [" "]}, {}, [], r"inputs\[1\].data\[0\]"),
    ("reader", {"question": ["a"], "context": ["a"]}, {"max_seq_len": 4}, [], "at least one token of the context"),
    ("reader", {"question": ["a"] * 2, "context": ["a " * 50_000] * 2}, {"top_k": 100}, [], "at most 16,777,216"),
    ("reader", {"question": ["a"], "context": ["a"]}, {"stride": 1}, [], "given: stride; expected: one of: align_to"),
    ("names", {"text": ["a"]}, {"top_k": 2}, [], "one of: aggregation_strategy, binary_data_output, stride"),
    ("names", {"text": ["a"]}, {"aggregation_strategy": "last"}, [], "parameters.aggregation_strategy"),
    ("encoder", {"text": ["a"]}, {"stride": 1}, [], "one of: binary_data_output, top_k, truncate"),
]


@pytest.mark.parametrize(("model", "inputs", "parameters", "outputs", "told"), REFUSED)
def test_an_unanswerable_request_is_refused_by_name(
    triton: InferenceServerClient,
    model: str,
    inputs: dict[str, list[str]],
    parameters: dict[str, int | str],
    outputs: list[str],
    told: str,
) -> None:
    tensors = [tensor(texts, name) for name, texts in inputs.items()]
    asked = [InferRequestedOutput(name) for name in outputs]
    with pytest.raises(InferenceServerException, match=told):
        triton.infer(model, tensors, outputs=asked, parameters=parameters)


TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES"}


@pytest.mark.parametrize(
    ("tensor", "behind", "length"),
    [
        (TENSOR | {"data": ["a", "b"]}, b"", None),
        (TENSOR | {"shape": [2, 2], "data": ["a"] * 4}, b"", None),
        (TENSOR | {"data": ["a"], "datatype": "FP32"}, b"", None),
        (TENSOR, b"", None),
        (TENSOR | {"parameters": {"binary_data_size": 9}}, struct.pack("<I", 1) + b"a", None),
        (TENSOR | {"parameters": {"binary_data_size": 5}}, struct.pack("<I", 2) + b"a", None),
        (TENSOR | {"parameters": {"binary_data_size": 3}}, b"\1\0\0", None),
        (TENSOR | {"parameters": {"binary_data_size": 5}}, struct.pack("<I", 1) + b"\xff", None),
        (TENSOR | {"data": ["a"]}, b"more", None),
        (TENSOR | {"data": ["a"]}, b"", "10000"),
        (TENSOR | {"data": ["a"]}, b"", "-1"),
    ],
)
def test_a_tensor_that_contradicts_its_description_is_refused(
    client: httpx.Client, tensor: dict[str, object], behind: bytes, length: str | None
) -> None:
    head = httpx.Request("POST", "http://x", json={"inputs": [tensor]}).content
    headers = {"inference-header-content-length": length or str(len(head))}
    refused = client.post("/v2/models/encoder/infer", content=head + behind, headers=headers)
    assert refused.status_code == 400
    assert list(refused.json()) == ["error"]


TAGGED = ["open the lists of a file", "a é"]
QUESTIONS = ["open", "é return the list"]
CONTEXTS = ["the list of a file, and é", "a file"]


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("strategy", ["none", "simple", "first"])
def test_entities_are_the_json_of_the_tag_route(
    triton: InferenceServerClient, client: httpx.Client, is_binary: bool, strategy: str
) -> None:
    parameters = {"aggregation_strategy": strategy, "stride": 4}
    answer = triton.infer(
        "names",
        [tensor(TAGGED, "text", is_binary=is_binary)],
        outputs=[InferRequestedOutput("entities", binary_data=is_binary)],
        parameters=parameters,
    )
    assert answer.as_numpy("entities").shape == (2, 1)
    expected = client.post("/tag", json={"inputs": TAGGED, "parameters": parameters}).json()
    assert len(expected[0]) > 0
    for (told,), wanted in zip(strings(answer, "entities"), expected, strict=True):
        found = json.loads(told)
        assert [one.pop("score") for one in found] == pytest.approx([one.pop("score") for one in wanted], abs=1e-5)
        assert found == wanted


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("is_context_first", [True, False])
def test_answers_equal_those_of_the_answer_route_for_each_question_and_context(
    triton: InferenceServerClient, client: httpx.Client, is_binary: bool, is_context_first: bool
) -> None:
    inputs = [tensor(QUESTIONS, "question", is_binary=is_binary), tensor(CONTEXTS, "context", is_binary=is_binary)]
    parameters = {"top_k": 2, "handle_impossible_answer": True, "max_answer_len": 2}
    names = ("answer", "score", "start", "end")
    answer = triton.infer(
        "reader",
        inputs[::-1] if is_context_first else inputs,
        outputs=[InferRequestedOutput(name, binary_data=is_binary) for name in names],
        parameters=parameters,
    )
    assert [answer.get_output(name)["datatype"] for name in names] == ["BYTES", "FP32", "INT64", "INT64"]
    for row, (question, context) in enumerate(zip(QUESTIONS, CONTEXTS, strict=True)):
        body = {"inputs": {"question": question, "context": context}, "parameters": parameters}
        expected = client.post("/answer", json=body).json()
        assert strings(answer, "answer")[row] == [one["answer"] for one in expected]
        assert answer.as_numpy("score")[row] == pytest.approx([one["score"] for one in expected], abs=1e-5)
        places = zip(answer.as_numpy("start")[row], answer.as_numpy("end")[row], strict=True)
        assert [*places] == [(one["start"], one["end"]) for one in expected]


def test_each_question_gets_one_answer_without_parameters(triton: InferenceServerClient) -> None:
    answer = triton.infer("reader", [tensor(QUESTIONS, "question"), tensor(CONTEXTS, "context")])
    assert answer.as_numpy("start").shape == (2, 1)
    for (told,), context, (start,), (end,) in zip(
        strings(answer, "answer"), CONTEXTS, answer.as_numpy("start"), answer.as_numpy("end"), strict=True
    ):
        assert told == context[start:end] != ""


def test_missing_answers_of_a_context_are_empty_and_score_0(triton: InferenceServerClient) -> None:
    answer = triton.infer(
        "reader",
        [tensor(QUESTIONS, "question"), tensor([CONTEXTS[0], "a"], "context")],
        parameters={"top_k": 5, "handle_impossible_answer": True},
    )
    told, scores = strings(answer, "answer"), answer.as_numpy("score")
    assert scores.shape == (2, 5)
    assert scores[0].all()
    assert {*told[1][:2]} == {"a", ""}
    assert scores[1, :2].all()
    assert told[1][2:] == ["", "", ""]
    assert not scores[1, 2:].any()


def test_the_triton_configuration_lists_the_tensors_of_the_model(triton: InferenceServerClient) -> None:
    told = triton.get_model_config("encoder")
    assert (told["name"], told["platform"], told["backend"]) == ("encoder", "onnxruntime_onnx", "onnxruntime")
    assert told["max_batch_size"] == 0
    assert told["input"] == [{"name": "text", "data_type": "TYPE_STRING", "dims": [-1]}]
    assert told["output"][0] == {"name": "embedding", "data_type": "TYPE_FP32", "dims": [-1, 8]}
    assert {output["data_type"] for output in triton.get_model_config("reader")["output"]} == {
        "TYPE_STRING",
        "TYPE_FP32",
        "TYPE_INT64",
    }
    (version,) = triton.get_model_metadata("encoder")["versions"]
    assert triton.get_model_config("encoder", version) == told


def test_an_unknown_model_is_refused_in_the_shape_of_the_protocol(triton: InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="no model of that name is served"):
        triton.get_model_config("gpt")
