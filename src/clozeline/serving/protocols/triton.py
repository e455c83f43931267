"""Triton's extension of the Open Inference Protocol that we have: the configuration of a model.

https://github.com/triton-inference-server/server/tree/main/docs/protocol: extension_model_configuration
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.serving.protocols.inference_protocol import INFERENCE_PROTOCOL, metadata_of, named, of_version
from clozeline.serving.protocols.operation import Call, JsonResponse, Operation
from clozeline.serving.protocols.tensors import Datatype

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
