"""Triton's client calls taggers and question answerers by the Open Inference Protocol."""

import json
from collections.abc import Iterator, Sequence

import httpx
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import InferenceServerException

TEXTS = ["open the lists of a file", "a é"]
QUESTIONS = ["open", "é return the list"]
CONTEXTS = ["the list of a file, and é", "a file"]


@pytest.fixture(scope="module")
def triton(client: httpx.Client) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(f"{client.base_url.host}:{client.base_url.port}") as triton:
        yield triton


def tensor(name: str, texts: Sequence[str], *, is_binary: bool = True) -> InferInput:
    values = np.array([text.encode() for text in texts], dtype=object)
    made = InferInput(name, values.shape, "BYTES")
    made.set_data_from_numpy(values, binary_data=is_binary)
    return made


def strings(answer: InferResult, name: str) -> list[list[str]]:
    return [[one if isinstance(one, str) else one.decode() for one in row] for row in answer.as_numpy(name)]


def test_metadata_lists_the_inputs_and_outputs_of_tagger_and_answerer(triton: InferenceServerClient) -> None:
    names, reader = (triton.get_model_metadata(name) for name in ("names", "reader"))
    assert names["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert names["outputs"] == [{"name": "entities", "datatype": "BYTES", "shape": [-1, 1]}]
    assert [one["name"] for one in reader["inputs"]] == ["question", "context"]
    assert [(one["name"], one["datatype"]) for one in reader["outputs"]] == [
        ("answer", "BYTES"),
        ("score", "FP32"),
        ("start", "INT64"),
        ("end", "INT64"),
    ]


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("strategy", ["none", "simple", "first"])
def test_entities_are_the_json_of_the_tag_route(
    triton: InferenceServerClient, client: httpx.Client, is_binary: bool, strategy: str
) -> None:
    parameters = {"aggregation_strategy": strategy, "stride": 4}
    answer = triton.infer(
        "names",
        [tensor("text", TEXTS, is_binary=is_binary)],
        outputs=[InferRequestedOutput("entities", binary_data=is_binary)],
        parameters=parameters,
    )
    assert answer.as_numpy("entities").shape == (2, 1)
    expected = client.post("/tag", json={"inputs": TEXTS, "parameters": parameters}).json()
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
    inputs = [tensor("question", QUESTIONS, is_binary=is_binary), tensor("context", CONTEXTS, is_binary=is_binary)]
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
    answer = triton.infer("reader", [tensor("question", QUESTIONS), tensor("context", CONTEXTS)])
    assert answer.as_numpy("start").shape == (2, 1)
    for (told,), context, (start,), (end,) in zip(
        strings(answer, "answer"), CONTEXTS, answer.as_numpy("start"), answer.as_numpy("end"), strict=True
    ):
        assert told == context[start:end] != ""


def test_missing_answers_of_a_context_are_empty_and_score_0(triton: InferenceServerClient) -> None:
    answer = triton.infer(
        "reader",
        [tensor("question", QUESTIONS), tensor("context", [CONTEXTS[0], "a"])],
        parameters={"top_k": 5, "handle_impossible_answer": True},
    )
    told, scores = strings(answer, "answer"), answer.as_numpy("score")
    assert scores.shape == (2, 5)
    assert scores[0].all()
    assert {*told[1][:2]} == {"a", ""}
    assert scores[1, :2].all()
    assert told[1][2:] == ["", "", ""]
    assert not scores[1, 2:].any()


@pytest.mark.parametrize(
    ("model", "inputs", "asked", "told"),
    [
        ("names", {"question": ["a"]}, {}, "given: question; expected: text;"),
        ("reader", {"text": ["a"]}, {}, "given: text; expected: question and context;"),
        ("reader", {"question": ["a"]}, {}, "given: question; expected: question and context;"),
        ("encoder", {"text": ["a"], "context": ["a"]}, {}, "given: text, context; expected: text;"),
        ("reader", {"question": ["a", "b"], "context": ["a"]}, {}, "2 in `question`, 1 in `context`"),
        ("reader", {"question": ["a"], "context": [" "]}, {}, r"inputs\[1\].data\[0\]"),
        ("reader", {"question": ["a"], "context": ["a"]}, {"max_seq_len": 4}, "at least one token of the context"),
        ("reader", {"question": ["a"] * 2, "context": ["a " * 50_000] * 2}, {"top_k": 100}, "at most 16,777,216"),
        ("reader", {"question": ["a"], "context": ["a"]}, {"stride": 1}, "given: stride; expected: one of: align_to"),
        ("names", {"text": ["a"]}, {"top_k": 2}, "one of: aggregation_strategy, binary_data_output, stride"),
        ("names", {"text": ["a"]}, {"aggregation_strategy": "last"}, "parameters.aggregation_strategy"),
        ("encoder", {"text": ["a"]}, {"stride": 1}, "one of: binary_data_output, top_k, truncate"),
    ],
)
def test_an_invalid_request_is_refused(
    triton: InferenceServerClient, model: str, inputs: dict[str, list[str]], asked: dict[str, int | str], told: str
) -> None:
    tensors = [tensor(name, texts) for name, texts in inputs.items()]
    with pytest.raises(InferenceServerException, match=told):
        triton.infer(model, tensors, parameters=asked)


@pytest.mark.parametrize(("model", "names"), [("names", "entities"), ("reader", "answer, score, start, end")])
def test_an_unknown_output_is_refused_with_the_known_ones(
    triton: InferenceServerClient, model: str, names: str
) -> None:
    inputs = {"names": {"text": ["a"]}, "reader": {"question": ["a"], "context": ["a"]}}[model]
    tensors = [tensor(name, texts) for name, texts in inputs.items()]
    with pytest.raises(InferenceServerException, match=f"one of: {names};"):
        triton.infer(model, tensors, outputs=[InferRequestedOutput("label")])


def test_surplus_binary_data_is_refused(client: httpx.Client) -> None:
    body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}
    head = json.dumps(body).encode()
    headers = {"inference-header-content-length": str(len(head))}
    assert client.post("/v2/models/names/infer", content=head, headers=headers).status_code == 200
    refused = client.post("/v2/models/names/infer", content=head + b"more", headers=headers)
    assert (refused.status_code, "4 bytes after the JSON" in refused.text) == (400, True)
