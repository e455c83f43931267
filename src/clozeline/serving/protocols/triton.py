"""Triton's extensions of the Open Inference Protocol: model configuration, statistics, and repository index.

https://github.com/triton-inference-server/server/tree/main/docs/protocol: extension_model_configuration,
extension_statistics, and the index of extension_model_repository. The server does not load or unload over HTTP.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.serving.observe.metrics import Spent
from clozeline.serving.protocols.fields import RequestBody
from clozeline.serving.protocols.inference_protocol import INFERENCE_PROTOCOL, metadata_of, named, of_version
from clozeline.serving.protocols.operation import ASKED, Call, Example, JsonResponse, Operation
from clozeline.serving.protocols.tensors import Datatype, read_tensors
from clozeline.serving.scheduling.work import LoadedModel

_DATA_TYPES: Mapping[Datatype, str] = MappingProxyType(
    {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT64": "TYPE_INT64"}
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


class Duration(BaseModel):
    count: int
    ns: int = Field(description="Total in nanoseconds.")


class InferenceStatistics(BaseModel):
    success: Duration
    queue: Duration
    compute_input: Duration = Field(description="Tokenization.")
    compute_infer: Duration


class ModelStatistics(BaseModel):
    """Totals since the server started, over all versions served under this name."""

    name: str
    version: str = Field(description="Version that is served now.")
    inference_count: int = Field(description="Answered texts.")
    inference_stats: InferenceStatistics = Field(description="Totals over requests.")


class Statistics(BaseModel):
    model_stats: list[ModelStatistics]


class IndexRequest(RequestBody):
    ready: Annotated[bool, Field(description="List only ready models. Every listed model is ready.")] = False


class IndexedModel(BaseModel):
    name: str
    version: str
    state: Literal["READY"] = "READY"
    reason: str = ""


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


async def statistics(call: Call) -> Response:
    return _statistics(call, list(call.models))


async def model_statistics(call: Call) -> Response:
    return _statistics(call, [named(call)])


async def index(call: Call, body: IndexRequest) -> Response:
    identities = [served.identity for served in call.models]
    return JsonResponse([IndexedModel(name=one.name, version=one.version).model_dump() for one in identities])


def _statistics(call: Call, models: list[LoadedModel]) -> Response:
    statistics = [_of_model(served, call.service.metrics.spent(served.identity.name)) for served in models]
    return JsonResponse(Statistics(model_stats=statistics).model_dump())


def _of_model(served: LoadedModel, spent: Spent) -> ModelStatistics:
    seconds = (spent.tokenize_seconds, spent.queue_seconds, spent.inference_seconds)
    compute_input, queue, compute_infer, success = (
        Duration(count=spent.num_requests, ns=int(1e9 * each)) for each in (*seconds, sum(seconds))
    )
    return ModelStatistics(
        name=served.identity.name,
        version=served.identity.version,
        inference_count=spent.num_texts,
        inference_stats=InferenceStatistics(
            success=success, queue=queue, compute_input=compute_input, compute_infer=compute_infer
        ),
    )


_CONFIGURATION = Operation(
    path="/v2/models/{model}/config",
    answer=configuration,
    summary="Configuration of a model, in Triton's form",
    result_description="Inputs and outputs of the model",
    tells="model",
    result=ModelConfiguration,
)
_STATISTICS = Operation(
    path="/v2/models/{model}/stats",
    answer=model_statistics,
    summary="Statistics of a model",
    result_description="Counts and times since the server started",
    tells="nothing",
    refusals=ASKED,
    result=Statistics,
)
TRITON = replace(
    INFERENCE_PROTOCOL,
    operations=(
        _CONFIGURATION,
        of_version(_CONFIGURATION, "configuration_of_version"),
        Operation(path="/v2/models/stats", answer=statistics, summary="Statistics of every model", result=Statistics),
        _STATISTICS,
        of_version(_STATISTICS, "statistics_of_version"),
        Operation(
            path="/v2/repository/index",
            answer=index,
            summary="The models and their versions",
            result_description="The served models",
            tells="nothing",
            refusals=ASKED,
            result=list[IndexedModel],
            body=IndexRequest,
            is_body_optional=True,
            examples={"all": Example("Every model", {"ready": True})},
            read=read_tensors,
        ),
    ),
    tag="Triton",
)
"""Errors have the protocol's own form."""
