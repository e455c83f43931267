"""Triton's client calls this server by the Open Inference Protocol, with tensors in JSON and as raw bytes."""

import struct
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from clozeline.serving.http.house_labels import CLASSIFYING
from clozeline.serving.http.house_texts import FILLING
from clozeline.serving.models import Catalogue

TEXTS = ["return the list", "é open the file", "a"]


@pytest.fixture(scope="module")
def triton(client: httpx.Client) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(f"{client.base_url.host}:{client.base_url.port}") as triton:
        yield triton


def texts_tensor(
    texts: list[str], *, is_binary: bool, shape: tuple[int, ...] | None = None, name: str = "text"
) -> InferInput:
    values = np.array([text.encode() for text in texts], dtype=object).reshape(shape or (len(texts),))
    tensor = InferInput(name, values.shape, "BYTES")
    tensor.set_data_from_numpy(values, binary_data=is_binary)
    return tensor


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
    encoder, library = (triton.get_model_metadata(name) for name in ("encoder", "library"))
    assert encoder["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert encoder["outputs"][0] == {"name": "embedding", "datatype": "FP32", "shape": [-1, 8]}
    assert [output["name"] for output in library["outputs"]] == ["label", "score"]
    assert triton.get_model_metadata("encoder", encoder["versions"][0]) == encoder


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_embeddings_come_in_the_requested_encoding(
    triton: InferenceServerClient, catalogue: Catalogue, is_binary: bool, shape: tuple[int, ...]
) -> None:
    answer = triton.infer(
        "encoder",
        [texts_tensor(TEXTS, is_binary=is_binary, shape=shape)],
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
    answer = triton.infer("library", [texts_tensor(TEXTS, is_binary=is_binary)], outputs=outputs)
    labels, scores = answer.as_numpy("label"), answer.as_numpy("score")
    assert labels.shape == scores.shape == (3, 3)
    expected = client.post("/classify", json={"inputs": TEXTS}).json()
    decoded = [[one if isinstance(one, str) else one.decode() for one in row] for row in labels]
    assert decoded == [[label["label"] for label in labels] for labels in expected]
    np.testing.assert_allclose(scores, [[label["score"] for label in labels] for labels in expected], atol=1e-6)


def test_outputs_are_binary_if_the_client_requests_none_by_name(triton: InferenceServerClient) -> None:
    answer = triton.infer("library", [texts_tensor(TEXTS, is_binary=True)], parameters={"top_k": 1})
    assert answer.as_numpy("label").shape == (3, 1)
    assert answer.as_numpy("score").dtype == np.float32


def test_mask_candidates_equal_those_of_fill_mask(triton: InferenceServerClient, client: httpx.Client) -> None:
    texts = ["the [MASK] of", "a [MASK]"]
    outputs = [InferRequestedOutput("token"), InferRequestedOutput("score"), InferRequestedOutput("embedding")]
    answer = triton.infer("encoder", [texts_tensor(texts, is_binary=True)], outputs=outputs, parameters={"top_k": 2})
    expected = client.post("/fill-mask", json={"inputs": texts, "parameters": {"top_k": 2}}).json()
    assert [[token.decode() for token in row] for row in answer.as_numpy("token")] == [
        [candidate["token_str"] for candidate in candidates] for candidates in expected
    ]
    assert answer.as_numpy("embedding").shape == (2, 8)


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("step", [1, -1])
def test_a_pair_model_pairs_texts_by_their_position(
    triton: InferenceServerClient, catalogue: Catalogue, is_binary: bool, step: int
) -> None:
    names = [one["name"] for one in triton.get_model_metadata("ranker")["inputs"]]
    assert names == ["text", "text_pair"]
    others = ["the file", "list", "é of"]
    tensors = [
        texts_tensor(texts, is_binary=is_binary, name=name) for name, texts in zip(names, (TEXTS, others), strict=True)
    ]
    answer = triton.infer("ranker", tensors[::step])
    expected = catalogue.answering(CLASSIFYING, "ranker").model.classify([*zip(TEXTS, others, strict=True)])
    assert len({one.score for (one,) in expected}) == 3
    np.testing.assert_allclose(answer.as_numpy("score"), [[one.score] for (one,) in expected], atol=1e-6)


@pytest.mark.parametrize(
    ("model", "inputs", "told"),
    [
        ("ranker", {"text": ["a"]}, "given: text; expected: text and text_pair;"),
        ("library", {"text": ["a"], "text_pair": ["b"]}, "given: text, text_pair; expected: text;"),
        ("ranker", {"text": ["a"], "text_pair": ["b", "c"]}, "1 in `text`, 2 in `text_pair`"),
        ("ranker", {"text": ["a"], "text_pair": [" "]}, r"inputs\[1\].data\[0\]"),
        ("ranker", {"text": ["a " * 40], "text_pair": ["b " * 40]}, "at most 64 tokens"),
    ],
)
def test_rows_that_are_not_pairs_are_refused(
    triton: InferenceServerClient, model: str, inputs: dict[str, list[str]], told: str
) -> None:
    with pytest.raises(InferenceServerException, match=told):
        triton.infer(model, [texts_tensor(texts, is_binary=True, name=name) for name, texts in inputs.items()])


@pytest.mark.parametrize(
    ("model", "texts", "outputs", "told"),
    [
        ("gpt", ["a"], [], "one of: encoder, library"),
        ("library", ["a"], ["embedding"], "one of: label, score"),
        ("encoder", ["a"], ["token"], r"\[MASK\] at least once"),
        ("encoder", ["[MASK] [MASK]"], ["token"], "2 masks in text 0"),
        ("encoder", ["a", ""], [], r"inputs\[0\].data\[1\]"),
        ("encoder", ["a", "a " * 100], [], "at most 64 tokens"),
    ],
)
def test_unanswerable_requests_are_refused(
    triton: InferenceServerClient, model: str, texts: list[str], outputs: list[str], told: str
) -> None:
    with pytest.raises(InferenceServerException, match=told):
        triton.infer(
            model, [texts_tensor(texts, is_binary=True)], outputs=[InferRequestedOutput(name) for name in outputs]
        )


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
