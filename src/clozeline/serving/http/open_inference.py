"""The Open Inference Protocol, version 2, over HTTP, for clients of Triton and KServe.

Texts come as a tensor `text`, pairs as `text` and `text_pair`, questions as `question` and `context`. An encoder
answers `embedding`, or `token` and `score` for a mask; a classifier `label` and `score`; a tagger `entities`, a JSON
list for each text; a question-answering model `answer`, `score`, and the characters of the context, `start` and `end`.

Parameters of the protocol are numbers, strings and booleans: lists that other paths take are missing here. Of Triton's
extensions we have one, the configuration of a model:
https://github.com/triton-inference-server/server/tree/main/docs/protocol: extension_model_configuration

Shapes: N texts, H hidden, K candidates, labels or answers: `embedding` is [N, H], `entities` [N, 1], all others [N, K].
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version as version_of
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.inference import fields, tokenization
from clozeline.serving.errors import check_known, refused
from clozeline.serving.http import tensors
from clozeline.serving.http.bodies import checked_texts
from clozeline.serving.http.operation import Call, Dialect, ErrorBody, JsonResponse, Operation, Words, sentence
from clozeline.serving.http.status import Health, live, ready
from clozeline.serving.http.tensors import Datatype
from clozeline.serving.loading import LoadedModel
from clozeline.serving.models import ANY, no_such_model

# Triton's names of its extensions; `TRITON` answers the last one.
EXTENSIONS = ("binary_tensor_data", "model_configuration")
_DATA_TYPES: Mapping[Datatype, str] = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT64": "TYPE_INT64"}


class InferenceProtocolError(ErrorBody):
    error: str


class OutputParameters(fields.StrictModel):
    binary_data: bool | None = None


class RequestedOutput(fields.StrictModel):
    name: tensors.OutputName
    parameters: OutputParameters = OutputParameters()


class InferRequest(fields.StrictModel):
    id: str | None = None
    parameters: tensors.InferParameters = tensors.InferParameters()
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


async def server(call: Call) -> Response:
    """Name, version and extensions of the server."""
    return JsonResponse({"name": "clozeline", "version": version_of("clozeline"), "extensions": EXTENSIONS})


async def metadata(call: Call) -> Response:
    """Inputs and outputs of a model.

    Returns:
        Name, version, inputs and outputs of the model.
    """
    served = named(call)
    return JsonResponse(metadata_of(served).model_dump(), headers=served.identity.headers)


async def model_ready(call: Call) -> Response:
    """Is the model loaded?

    Returns:
        The model is loaded.
    """
    served = named(call)
    return JsonResponse({"name": call.request.path_params["model"], "ready": True}, headers=served.identity.headers)


async def infer(call: Call, body: InferRequest) -> Response:
    """Run a model.

    Returns:
        The requested outputs.
    """
    served = named(call)
    manifest = served.model.manifest
    kind = tensors.answers_of(manifest)
    known = sorted({"binary_data_output", *kind.parameters})
    check_known("no_such_parameter", sorted(body.parameters.model_fields_set), known, "parameters.{}")
    wanted = tuple(dict.fromkeys(output.name for output in body.outputs)) or kind.unasked or kind.outputs
    check_known("no_such_output", wanted, kind.outputs, "outputs")
    asked = tensors.TensorRequest(call, served, _given(call, served, body), wanted, body.parameters)
    values, headers = await kind.tensors(asked)
    named_binary = {output.name: output.parameters.binary_data for output in body.outputs}
    everywhere = body.parameters.binary_data_output
    binary = [name for name in wanted if (everywhere if (one := named_binary.get(name)) is None else one)]
    identity = {"model_name": served.identity.name, "model_version": served.identity.version}
    content = identity if body.id is None else identity | {"id": body.id}
    return tensors.answer(content, {name: values[name] for name in wanted}, binary, headers)


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


def _given(call: Call, served: LoadedModel, body: InferRequest) -> list[tokenization.Given]:
    """Return the texts, or the pairs of texts, by position.

    Raises:
        ApiError: 400, the request has other inputs than the model, or two that differ in length.
    """
    names, given = _input_names(served), [tensor.name for tensor in body.inputs]
    if sorted(given) != sorted(names):
        raise refused("no_such_input", given=", ".join(given), expected=" and ".join(names), param="inputs")
    strings = tensors.strings_of(body.inputs, call.behind_json)
    checked: dict[str, list[str]] = {
        name: checked_texts(texts, f"inputs[{number}].data")
        for number, (name, texts) in enumerate(zip(given, strings, strict=True))
    }
    first, *others = (checked[name] for name in names)
    if others and len(first) != len(others[0]):
        raise refused(
            "unpaired_inputs",
            given=f"{len(first)} in `{names[0]}`, {len(others[0])} in `{names[1]}`",
            expected="the same number of texts, paired by position",
            do=f"send one text in `{names[1]}` for each text in `{names[0]}`, and repeat texts where needed",
            param="inputs",
        )
    return list(zip(first, *others, strict=True)) if others else list(first)


def _input_names(served: LoadedModel) -> Sequence[str]:
    return served.model.pair_names(reads_pairs=served.model.manifest.reads_pairs) or ("text",)


def metadata_of(served: LoadedModel) -> ModelMetadata:
    manifest = served.model.manifest
    second_axes: dict[tensors.OutputName, int] = {"embedding": manifest.hidden_size, "entities": 1}
    return ModelMetadata(
        name=served.identity.name,
        versions=[served.identity.version],
        platform="onnxruntime_onnx",
        inputs=[TensorMetadata(name=name, datatype="BYTES", shape=[-1]) for name in _input_names(served)],
        outputs=[
            TensorMetadata(
                name=name, datatype=tensors.NUMBERS.get(name, "BYTES"), shape=[-1, second_axes.get(name, -1)]
            )
            for name in tensors.answers_of(manifest).outputs
        ],
    )


_METADATA = Operation(path="/v2/models/{model}", answer=metadata, tells="model", result=ModelMetadata)
_READY = replace(_METADATA, path="/v2/models/{model}/ready", answer=model_ready, result=ModelReady)
_INFER = Operation(
    path="/v2/models/{model}/infer",
    answer=infer,
    result=InferResponse,
    ability=ANY,
    read=tensors.read_tensors,
    place="inputs[0].data[{}]".format,
)


def of_version(asked: Operation, name: str) -> Operation:
    path = asked.path.replace("{model}", "{model}/versions/{version}")
    return replace(asked, path=path, name=name, summary="Same as without a version")


INFERENCE_PROTOCOL = Dialect(
    Words(InferenceProtocolError, lambda status, detail: InferenceProtocolError(error=sentence(detail)), unusable=400),
    (
        Operation(path="/v2", answer=server, result=ServerMetadata),
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
    max_batch_size: int = Field(default=0, description="0: the first axis of each tensor counts the texts.")
    input: list[ConfiguredTensor]
    output: list[ConfiguredTensor]


async def configuration(call: Call) -> Response:
    """Configuration of a model, in Triton's form.

    Returns:
        Inputs and outputs of the model.
    """
    served = named(call)
    metadata = metadata_of(served)
    inputs, outputs = (
        [
            ConfiguredTensor(name=tensor.name, data_type=_DATA_TYPES[tensor.datatype], dims=tensor.shape)
            for tensor in listed
        ]
        for listed in (metadata.inputs, metadata.outputs)
    )
    config = ModelConfiguration(name=metadata.name, platform=metadata.platform, input=inputs, output=outputs)
    return JsonResponse(config.model_dump(), headers=served.identity.headers)


_CONFIGURATION = Operation(
    path="/v2/models/{model}/config", answer=configuration, tells="model", result=ModelConfiguration
)
# Errors have the protocol's own form.
TRITON = replace(
    INFERENCE_PROTOCOL,
    operations=(_CONFIGURATION, of_version(_CONFIGURATION, "configuration_of_version")),
    tag="Triton",
)
