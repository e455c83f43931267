"""The Open Inference Protocol, version 2, over HTTP, for clients of Triton and KServe.

Texts come as a tensor `text`, pairs as `text` and `text_pair`, questions as `question` and `context`. An encoder
answers `embedding`, or `token` and `score` for a mask; a classifier `label` and `score`; a tagger `entities`, a JSON
list for each text; a question-answering model `answer`, `score`, and the characters of the context, `start` and `end`.

Parameters of the protocol are numbers, strings and booleans: lists that other paths take are missing here. Of Triton's
extensions we have one, the configuration of a model:
https://github.com/triton-inference-server/server/tree/main/docs/protocol: extension_model_configuration

Shapes: N texts, H hidden, K candidates, labels or answers: `embedding` is [N, H], `entities` [N, 1], all others [N, K].
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version as version_of
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.inference import fields
from clozeline.inference.answerer import Answer
from clozeline.inference.completer import Candidates, Completer
from clozeline.inference.fields import StrictModel
from clozeline.inference.language import Filled, OpenEncoder
from clozeline.inference.open_model import AnyQuestion
from clozeline.inference.package import kind_of, resolved
from clozeline.inference.tokenization import Given
from clozeline.records.package import Manifest, Task
from clozeline.serving.errors import ErrorDetail, problem, refused
from clozeline.serving.http import tensors
from clozeline.serving.http.bodies import checked_texts
from clozeline.serving.http.dialects import Dialect, ErrorBody, Words, sentence
from clozeline.serving.http.house_labels import (
    ANSWERING,
    CLASSIFYING,
    CLASSIFYING_PAIRS,
    TAGGING,
    answered,
    check_answer_size,
    labelled,
    tagged,
)
from clozeline.serving.http.house_texts import DEFAULT_NUM_CANDIDATES, EMBEDDING, FILLING, filling
from clozeline.serving.http.operation import Call, Example, JsonResponse, Operation
from clozeline.serving.http.status import Health, live, ready
from clozeline.serving.http.tensors import Datatype, InputName, Values
from clozeline.serving.loading import LoadedModel
from clozeline.serving.models import ANY, no_such_model

OutputName = Literal["embedding", "token", "score", "label", "entities", "answer", "start", "end"]
DATATYPES: Mapping[OutputName, Datatype] = MappingProxyType(
    {
        "embedding": "FP32",
        "token": "BYTES",
        "score": "FP32",
        "label": "BYTES",
        "entities": "BYTES",
        "answer": "BYTES",
        "start": "INT64",
        "end": "INT64",
    }
)
Answered = tuple[dict[OutputName, Values], dict[str, str]]
"""Outputs, and headers that name the model."""
_OF_PAIRS: tuple[InputName, InputName] = ("text", "text_pair")
_NO_ANSWER = Answer("", 0.0, 0, 0)
"""Padding for a context with fewer answers than another of the same request."""
_OF_ALL = frozenset({"binary_data_output"})
_TOKENS: tuple[OutputName, ...] = ("embedding", "token", "score")
_OF_TOKENS = _OF_ALL | {"top_k", "truncate"}
EXTENSIONS = ("binary_tensor_data", "model_configuration")
"""Triton's names of its extensions; `TRITON` answers the last one."""
_TEXTS = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["Sort a list.", "Open a file."]}
_DATA_TYPES: Mapping[Datatype, str] = MappingProxyType(
    {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT64": "TYPE_INT64"}
)


class InferParameters(fields.TagReading, fields.AnswerSearch):
    """Parameters for tags and answers are those of /tag and /answer."""

    binary_data_output: bool = False
    top_k: Annotated[
        fields.TopK | None,
        Field(
            description="Number of candidates for the mask or the next token (null: 5), labels (all) or answers (1)."
        ),
    ] = None
    truncate: fields.Truncate = False


@dataclass(frozen=True, slots=True)
class TensorRequest:
    """A checked request: its model has the named inputs, outputs and parameters."""

    call: Call
    model: str
    inputs: Mapping[InputName, list[str]]
    outputs: Sequence[OutputName]
    parameters: InferParameters


async def _labelled(asked: TensorRequest) -> Answered:
    """Return the labels of texts or pairs of texts, best first."""
    served = asked.call.served(CLASSIFYING, asked.model)
    of_pairs = served.model.manifest.reads_pairs
    given: Sequence[Given] = _pairs_of(asked.inputs, *_OF_PAIRS) if of_pairs else asked.inputs["text"]
    wanted = asked.parameters
    reply = await labelled(asked.call, served, given, top_k=wanted.top_k, truncate=wanted.truncate)
    score_NK = np.array([[label.score for label in labels] for labels in reply.answers], dtype=np.float32)
    return {"label": [[one.label for one in labels] for labels in reply.answers], "score": score_NK}, reply.headers


async def _encoded(asked: TensorRequest, predicting: "_Predicting | None" = None) -> Answered:
    """Return embeddings, the likeliest tokens of each text, or both."""
    served = asked.call.served(EMBEDDING, asked.model)
    texts, wanted = asked.inputs["text"], asked.outputs
    predicts = predicting is not None and bool({"token", "score"} & set(wanted))

    def questions() -> Iterator[AnyQuestion]:
        if "embedding" in wanted:
            yield served.model.embedding(texts, truncate=asked.parameters.truncate)
        if predicting is not None and predicts:
            yield predicting.question(served.model, asked)

    replies = await asked.call.ask_together(served, texts, lambda: list(questions()))
    values: dict[OutputName, Values] = {}
    if "embedding" in wanted:
        values["embedding"] = np.stack(replies[0].answers)
    if predicting is not None and predicts:
        best = [predicting.best(served.model, *numbered) for numbered in enumerate(replies[-1].answers)]
        asked.call.service.metrics.confident(asked.model, (words[0][1] for words in best))
        values["token"] = [[token for token, _ in words] for words in best]
        values["score"] = np.array([[score for _, score in words] for words in best], dtype=np.float32)
    return values, replies[0].headers


async def _tagged(asked: TensorRequest) -> Answered:
    """Return the entities of each text as a JSON list, because their number differs between texts."""
    served = asked.call.served(TAGGING, asked.model)
    found, headers = await tagged(asked.call, served, asked.inputs["text"], asked.parameters)
    return {"entities": [[orjson.dumps(of_text).decode()] for of_text in found]}, headers


async def _answered(asked: TensorRequest) -> Answered:
    """Return the answers to each question, best first."""
    served, wanted = asked.call.served(ANSWERING, asked.model), asked.parameters
    pairs = _pairs_of(asked.inputs, "question", "context")
    top_k = wanted.top_k or 1
    check_answer_size(top_k, asked.inputs["context"], "parameters.top_k")
    found, headers = await answered(asked.call, served, pairs, top_k, wanted)
    most = max(map(len, found))
    rows = [[*answers, *[_NO_ANSWER] * (most - len(answers))] for answers in found]
    return {
        "answer": [[one.answer for one in row] for row in rows],
        "score": np.array([[one.score for one in row] for row in rows], dtype=np.float32),
        "start": np.array([[one.start for one in row] for row in rows], dtype=np.int64),
        "end": np.array([[one.end for one in row] for row in rows], dtype=np.int64),
    }, headers


@dataclass(frozen=True, slots=True)
class _Predicting:
    """How a language model predicts the tokens of one place in each text."""

    question: Callable[[Any, TensorRequest], AnyQuestion]
    """Function of the model and the request."""
    best: Callable[[Any, int, Any], list[tuple[str, float]]]
    """Function from the model, the index of a text and its answer to tokens and scores, best first."""


def _filling(encoder: OpenEncoder, asked: TensorRequest) -> AnyQuestion:
    texts = encoder.with_own_masks(asked.inputs["text"])
    top_k = asked.parameters.top_k or DEFAULT_NUM_CANDIDATES
    return filling(encoder, texts, top_k=top_k, truncate=asked.parameters.truncate)


def _following(completer: Completer, asked: TensorRequest) -> AnyQuestion:
    top_k = asked.parameters.top_k or DEFAULT_NUM_CANDIDATES
    return completer.following(asked.inputs["text"], top_k=top_k, truncate=asked.parameters.truncate)


def _of_next_token(completer: Completer, number: int, candidates: Candidates) -> list[tuple[str, float]]:
    return [(completer.tokenizer.token_text(token_id), score) for token_id, score in candidates]


def _of_only_mask(encoder: OpenEncoder, number: int, masks: list[list[Filled]]) -> list[tuple[str, float]]:
    if len(masks) != 1:
        raise refused(
            "several_masks",
            given=f"{len(masks)} masks in text {number}",
            expected="1 mask in each text",
            param=f"inputs[0].data[{number}]",
        )
    return [(word.token_str, word.score) for word in masks[0]]


@dataclass(frozen=True, slots=True)
class TensorKind:
    """Tensors of one kind of model."""

    answer: Callable[[TensorRequest], Awaitable[Answered]]
    outputs: tuple[OutputName, ...]
    parameters: frozenset[str]
    """Names of the parameters that it reads."""
    inputs: tuple[InputName, ...] = ("text",)
    """Names of the inputs. For a classifier of pairs see `inputs_of`."""
    unasked: tuple[OutputName, ...] = ()
    """Default outputs if the request names none; empty: all."""


MASKS = TensorKind(
    partial(_encoded, predicting=_Predicting(_filling, _of_only_mask)), _TOKENS, _OF_TOKENS, unasked=("embedding",)
)
NEXT_TOKENS = TensorKind(
    partial(_encoded, predicting=_Predicting(_following, _of_next_token)), _TOKENS, _OF_TOKENS, unasked=("embedding",)
)
LABELS = TensorKind(_labelled, ("label", "score"), _OF_ALL | {"top_k", "truncate"})
EMBEDDINGS = TensorKind(_encoded, ("embedding",), _OF_ALL | {"truncate"})
ENTITIES = TensorKind(_tagged, ("entities",), _OF_ALL | set(fields.TagReading.model_fields))
ANSWERS = TensorKind(
    _answered,
    ("answer", "score", "start", "end"),
    _OF_ALL | {"top_k"} | set(fields.AnswerSearch.model_fields),
    inputs=("question", "context"),
)


def tensor_kind(task: Task) -> TensorKind:
    """Return the tensors of the models of a task."""
    kind: TensorKind = resolved(kind_of(task).tensors)
    return kind


def inputs_of(manifest: Manifest) -> tuple[InputName, ...]:
    """Return the names of the inputs. A classifier of pairs has two, `text` and `text_pair`, matched by position."""
    return _OF_PAIRS if manifest.reads_pairs else tensor_kind(manifest.task).inputs


def check_inputs(manifest: Manifest, given: Sequence[InputName]) -> None:
    """Raise ApiError (422) if the request has other inputs than the model."""
    names = inputs_of(manifest)
    if sorted(given) != sorted(names):
        raise refused("no_such_input", given=", ".join(given), expected=" and ".join(names), param="inputs")


def outputs_of(task: Task, requested: Sequence[OutputName]) -> tuple[OutputName, ...]:
    """Return the requested names, each once, or the default outputs if none are named.

    Raises:
        ApiError: 422, a model of `task` has no such output.
    """
    kind = tensor_kind(task)
    wanted = tuple(dict.fromkeys(requested)) or kind.unasked or kind.outputs
    wrong = next((name for name in wanted if name not in kind.outputs), None)
    if wrong:
        raise refused("no_such_output", given=wrong, expected=f"one of: {', '.join(kind.outputs)}", param="outputs")
    return wanted


def check_parameters(task: Task, parameters: InferParameters) -> None:
    """Raise ApiError (422) if a parameter was sent that models of `task` do not read."""
    known = tensor_kind(task).parameters
    unread = sorted(parameters.model_fields_set - known)
    if unread:
        raise refused(
            "no_such_parameter",
            given=unread[0],
            expected=f"one of: {', '.join(sorted(known))}",
            param=f"parameters.{unread[0]}",
        )


def _pairs_of(inputs: Mapping[InputName, list[str]], first: InputName, second: InputName) -> list[tuple[str, str]]:
    """Return the texts of two inputs as pairs, by position.

    Raises:
        ApiError: 422, the inputs differ in length.
    """
    if len(inputs[first]) != len(inputs[second]):
        raise problem(
            422,
            "unpaired_inputs",
            "the two inputs have different numbers of texts",
            given=f"{len(inputs[first])} in `{first}`, {len(inputs[second])} in `{second}`",
            expected="the same number of texts, paired by position",
            do=f"send one text in `{second}` for each text in `{first}`, and repeat texts where needed",
            param="inputs",
        )
    return list(zip(inputs[first], inputs[second], strict=True))


class InferenceProtocolError(ErrorBody):
    error: str


def _said(status: int, detail: ErrorDetail) -> InferenceProtocolError:
    return InferenceProtocolError(error=sentence(detail))


class OutputParameters(StrictModel):
    binary_data: bool | None = None


class RequestedOutput(StrictModel):
    name: OutputName
    parameters: OutputParameters = OutputParameters()


class InferRequest(StrictModel):
    id: str | None = None
    parameters: InferParameters = InferParameters()
    inputs: Annotated[list[tensors.InputTensor], Field(min_length=1, max_length=2)]
    outputs: Annotated[list[RequestedOutput], Field(default_factory=list, max_length=4)]


class InferResponse(BaseModel):
    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[tensors.Tensor]


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    name: str
    datatype: tensors.Datatype
    shape: list[int]


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(BaseModel):
    name: str
    ready: bool


def _one(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "shape": [1], "datatype": "BYTES", "data": [text]}


EXAMPLES = {
    "texts": Example("Two texts", {"inputs": [_TEXTS]}),
    "named": Example(
        "Words for a mask",
        {
            "id": "1",
            "parameters": {"top_k": 3},
            "inputs": [_one("text", "Return the [MASK].") | {"shape": [1, 1], "data": [["Return the [MASK]."]]}],
            "outputs": [{"name": "token"}, {"name": "score"}],
        },
        ability=FILLING,
    ),
    "pairs": Example(
        "Labels of a pair of texts, for a model that reads pairs",
        {"inputs": [_one("text", "How do I sort a list?"), _one("text_pair", "Sort a list in place.")]},
        ability=CLASSIFYING_PAIRS,
    ),
    "entities": Example(
        "The entities of a text, for a tagger",
        {
            "parameters": {"aggregation_strategy": "first"},
            "inputs": [_one("text", "Maria Lopez lives in Oslo.")],
            "outputs": [{"name": "entities"}],
        },
        ability=TAGGING,
    ),
    "answers": Example(
        "Answers from a context, for a question-answering model",
        {
            "parameters": {"top_k": 2, "handle_impossible_answer": True},
            "inputs": [_one("question", "Where does Maria live?"), _one("context", "Maria Lopez lives in Oslo.")],
        },
        ability=ANSWERING,
    ),
}


async def server(call: Call) -> Response:
    return JsonResponse({"name": "clozeline", "version": version_of("clozeline"), "extensions": EXTENSIONS})


async def metadata(call: Call) -> Response:
    served = named(call)
    return JsonResponse(metadata_of(served).model_dump(), headers=served.identity.headers)


async def model_ready(call: Call) -> Response:
    served = named(call)
    return JsonResponse({"name": call.request.path_params["model"], "ready": True}, headers=served.identity.headers)


async def infer(call: Call, body: InferRequest) -> Response:
    served = named(call)
    manifest = served.model.manifest
    check_parameters(manifest.task, body.parameters)
    wanted = outputs_of(manifest.task, [output.name for output in body.outputs])
    asked = TensorRequest(call, served.identity.name, _inputs(call, manifest, body), wanted, body.parameters)
    values, headers = await tensor_kind(manifest.task).answer(asked)
    binary = {output.name: output.parameters.binary_data for output in body.outputs}
    everywhere = body.parameters.binary_data_output
    outputs = [
        tensors.OutputTensor(name, values[name], everywhere if binary.get(name) is None else bool(binary[name]))
        for name in wanted
    ]
    identity = {"model_name": served.identity.name, "model_version": served.identity.version}
    return tensors.answer(identity | ({} if body.id is None else {"id": body.id}), outputs, headers)


def named(call: Call) -> LoadedModel:
    """Return the model whose name, and version if given, the path holds.

    Raises:
        ApiError: 404, no model has that name, or another version of it is served.
    """
    name, version = call.request.path_params["model"], call.request.path_params.get("version")
    served = call.served(ANY, name)
    if version not in (None, served.identity.version):
        raise no_such_model(f"{name}, version {version}", [f"{name}, version {served.identity.version}"], ANY)
    return served


def _inputs(call: Call, manifest: Manifest, body: InferRequest) -> dict[tensors.InputName, list[str]]:
    check_inputs(manifest, [tensor.name for tensor in body.inputs])
    strings = tensors.strings_of(body.inputs, call.behind_json)
    return {
        tensor.name: checked_texts(texts, f"inputs[{number}].data")
        for number, (tensor, texts) in enumerate(zip(body.inputs, strings, strict=True))
    }


def metadata_of(served: LoadedModel) -> ModelMetadata:
    manifest = served.model.manifest
    second_axes: dict[OutputName, int] = {"embedding": manifest.hidden_size, "entities": 1}
    return ModelMetadata(
        name=served.identity.name,
        versions=[served.identity.version],
        platform="onnxruntime_onnx",
        inputs=[TensorMetadata(name=name, datatype="BYTES", shape=[-1]) for name in inputs_of(manifest)],
        outputs=[
            TensorMetadata(name=name, datatype=DATATYPES[name], shape=[-1, second_axes.get(name, -1)])
            for name in tensor_kind(manifest.task).outputs
        ],
    )


_METADATA = Operation(
    path="/v2/models/{model}",
    answer=metadata,
    summary="Inputs and outputs of a model",
    result_description="Name, version, inputs and outputs of the model",
    tells="model",
    result=ModelMetadata,
)
_READY = replace(
    _METADATA,
    path="/v2/models/{model}/ready",
    answer=model_ready,
    summary="Is the model loaded?",
    result_description="The model is loaded",
    result=ModelReady,
)
_INFER = Operation(
    path="/v2/models/{model}/infer",
    answer=infer,
    summary="Run a model",
    result_description="The requested outputs",
    result=InferResponse,
    ability=ANY,
    body=InferRequest,
    examples=EXAMPLES,
    read=tensors.read_tensors,
    place="inputs[0].data[{}]".format,
)


def of_version(asked: Operation, name: str) -> Operation:
    path = asked.path.replace("{model}", "{model}/versions/{version}")
    return replace(asked, path=path, name=name, summary="Same as without a version")


INFERENCE_PROTOCOL = Dialect(
    Words(InferenceProtocolError, _said, unusable=400),
    (
        Operation(
            path="/v2", answer=server, summary="Name, version and extensions of the server", result=ServerMetadata
        ),
        Operation(path="/v2/health/live", answer=live, summary="Same as /health/live", result=Health),
        Operation(path="/v2/health/ready", answer=ready, summary="Same as /health/ready", result=Health),
        _METADATA,
        _READY,
        _INFER,
        of_version(_METADATA, "metadata_of_version"),
        of_version(_READY, "version_ready"),
        of_version(_INFER, "infer_version"),
    ),
    tag="Open Inference Protocol",
)


class ConfiguredTensor(BaseModel):
    name: str
    data_type: str
    dims: list[int]


class ModelConfiguration(BaseModel):
    name: str
    platform: str
    backend: Literal["onnxruntime"] = "onnxruntime"
    max_batch_size: Annotated[int, Field(description="0: the first axis of each tensor counts the texts.")] = 0
    input: list[ConfiguredTensor]
    output: list[ConfiguredTensor]


async def configuration(call: Call) -> Response:
    served = named(call)
    metadata = metadata_of(served)
    inputs, outputs = (
        [
            ConfiguredTensor(name=tensor.name, data_type=_DATA_TYPES[tensor.datatype], dims=tensor.shape)
            for tensor in tensors
        ]
        for tensors in (metadata.inputs, metadata.outputs)
    )
    config = ModelConfiguration(name=metadata.name, platform=metadata.platform, input=inputs, output=outputs)
    return JsonResponse(config.model_dump(), headers=served.identity.headers)


_CONFIGURATION = Operation(
    path="/v2/models/{model}/config",
    answer=configuration,
    summary="Configuration of a model, in Triton's form",
    result_description="Inputs and outputs of the model",
    tells="model",
    result=ModelConfiguration,
)
TRITON = replace(
    INFERENCE_PROTOCOL,
    operations=(_CONFIGURATION, of_version(_CONFIGURATION, "configuration_of_version")),
    tag="Triton",
)
"""Errors have the protocol's own form."""
