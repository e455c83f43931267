"""The Open Inference Protocol, version 2, over HTTP, for clients of Triton and KServe.

Texts come as a tensor `text`, pairs as `text` and `text_pair`, questions as `question` and `context`. An encoder
answers `embedding`, or `token` and `score` for a mask; a classifier `label` and `score`; a tagger `entities`, a JSON
list for each text; a question-answering model `answer`, `score`, and the characters of the context, `start` and `end`.
"""

from dataclasses import replace
from importlib.metadata import version as version_of
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.artifacts.export.manifest import Manifest
from clozeline.serving.errors import ErrorDetail
from clozeline.serving.models.catalogue import ANY, no_such_model
from clozeline.serving.protocols import tensors
from clozeline.serving.protocols.dialects import Dialect, ErrorBody, Words, sentence
from clozeline.serving.protocols.fields import RequestBody, checked_texts
from clozeline.serving.protocols.house.answer import ANSWERING
from clozeline.serving.protocols.house.classify import CLASSIFYING_PAIRS
from clozeline.serving.protocols.house.fill_mask import FILLING
from clozeline.serving.protocols.house.status import Health, live, ready
from clozeline.serving.protocols.house.tag import TAGGING
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation
from clozeline.serving.protocols.tensor_kinds import (
    DATATYPES,
    Asked,
    InferParameters,
    OutputName,
    check_inputs,
    check_parameters,
    inputs_of,
    outputs_of,
    tensor_kind,
)
from clozeline.serving.scheduling.work import LoadedModel

EXTENSIONS = ("binary_tensor_data", "model_configuration")
"""Triton's names of its extensions; triton.py answers the last one."""


class InferenceProtocolError(ErrorBody):
    error: str


def _said(status: int, detail: ErrorDetail) -> InferenceProtocolError:
    return InferenceProtocolError(error=sentence(detail))


class OutputParameters(RequestBody):
    binary_data: bool | None = None


class RequestedOutput(RequestBody):
    name: OutputName
    parameters: OutputParameters = OutputParameters()


class InferRequest(RequestBody):
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


_TEXTS = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["Sort a list.", "Open a file."]}
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
    asked = Asked(call, served.identity.name, _inputs(call, manifest, body), wanted, body.parameters)
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
