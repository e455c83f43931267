"""The Open Inference Protocol, version 2, over HTTP: what the clients of Triton and KServe speak.

Texts come as a tensor `text`. An encoder answers with `embedding`, or with `token` and `score` where it is to fill a
mask; a classifier with `label` and `score`.
"""

from importlib.metadata import version as version_of
from typing import Annotated

from fastapi import APIRouter, Body, Path, Request, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field

from clozeline.serving import schemas, status_routes
from clozeline.serving.catalogue import no_such_model
from clozeline.serving.dialects import INFERENCE_PROTOCOL
from clozeline.serving.loading import LoadedModel
from clozeline.serving.openapi import answered, not_ready
from clozeline.serving.protocols import tensors
from clozeline.serving.protocols.named_outputs import (
    OUTPUTS,
    Asked,
    InferParameters,
    RequestedOutput,
    encoded,
    labelled,
    outputs_of,
)
from clozeline.serving.responses import JsonResponse
from clozeline.serving.service import service_of

router = APIRouter(prefix="/v2", route_class=tensors.TensorRoute, tags=["Open Inference Protocol"])


class InferRequest(schemas.RequestBody):
    id: str | None = None
    parameters: InferParameters = InferParameters()
    inputs: Annotated[list[tensors.InputTensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[RequestedOutput], Field(default_factory=list, max_length=3)]


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
    datatype: str
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


_TEXTS = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["Sort a list.", "Open a file."]}
EXAMPLES: dict[str, Example] = {
    "texts": {"summary": "Two texts", "value": {"inputs": [_TEXTS]}},
    "named": {
        "summary": "Words for a mask",
        "value": {
            "id": "1",
            "parameters": {"top_k": 3},
            "inputs": [{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [["Return the [MASK]."]]}],
            "outputs": [{"name": "token"}, {"name": "score"}],
        },
    },
}
_NAMED = answered("Which model it is", INFERENCE_PROTOCOL, is_timed=False)
_INFERRED = answered("The outputs that were asked for", INFERENCE_PROTOCOL)
VersionPath = Annotated[str, Path(description="Of the model; another than the one that is served is not found.")]


@router.get(
    "",
    summary="The server, and what it adds to the protocol",
    response_model=ServerMetadata,
    responses=not_ready(INFERENCE_PROTOCOL),
)
async def server(request: Request) -> Response:
    return JsonResponse({"name": "clozeline", "version": version_of("clozeline"), "extensions": ["binary_tensor_data"]})


@router.get(
    "/health/live", summary="As /health/live", response_model=schemas.Health, responses=not_ready(INFERENCE_PROTOCOL)
)
async def live(request: Request) -> Response:
    return await status_routes.live(request)


@router.get(
    "/health/ready", summary="As /health/ready", response_model=schemas.Health, responses=not_ready(INFERENCE_PROTOCOL)
)
async def ready(request: Request) -> Response:
    return await status_routes.ready(request)


@router.get("/models/{model}", summary="A model, its input and outputs", response_model=ModelMetadata, responses=_NAMED)
async def metadata(request: Request, model: schemas.ModelPath) -> Response:
    served = service_of(request).catalogue.first(model)
    return JsonResponse(_metadata(served).model_dump(), headers=served.identity.headers)


@router.get("/models/{model}/ready", summary="Is it loaded?", response_model=ModelReady, responses=_NAMED)
async def model_ready(request: Request, model: schemas.ModelPath) -> Response:
    served = service_of(request).catalogue.first(model)
    return JsonResponse({"name": model, "ready": True}, headers=served.identity.headers)


@router.post("/models/{model}/infer", summary="Ask a model", response_model=InferResponse, responses=_INFERRED)
async def infer(
    request: Request,
    model: schemas.ModelPath,
    body: Annotated[InferRequest, Body(openapi_examples=EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    service = service_of(request)
    served = service.catalogue.answering("/v2/models/{model}/infer", model)
    task = served.model.manifest.task
    wanted = outputs_of(task, body.outputs)
    texts = schemas.checked_texts(tensors.texts_of(body.inputs[0], request.state.behind_json), "inputs[0].data")
    asked = Asked(request, model, texts, body.parameters, timeout_milliseconds)
    values, headers = await (labelled if task == "text-classification" else encoded)(service, asked, wanted)
    binary = {output.name: output.parameters.binary_data for output in body.outputs}
    everywhere = body.parameters.binary_data_output
    outputs = [
        tensors.OutputTensor(name, values[name], everywhere if binary.get(name) is None else bool(binary[name]))
        for name in wanted
    ]
    told = {"model_name": served.identity.name, "model_version": served.identity.version}
    return tensors.answer(told | ({} if body.id is None else {"id": body.id}), outputs, headers)


@router.get(
    "/models/{model}/versions/{version}", summary="As without version", response_model=ModelMetadata, responses=_NAMED
)
async def metadata_of_version(request: Request, model: schemas.ModelPath, version: VersionPath) -> Response:
    _check_version(request, model, version)
    return await metadata(request, model)


@router.get(
    "/models/{model}/versions/{version}/ready",
    summary="As without version",
    response_model=ModelReady,
    responses=_NAMED,
)
async def version_ready(request: Request, model: schemas.ModelPath, version: VersionPath) -> Response:
    _check_version(request, model, version)
    return await model_ready(request, model)


@router.post(
    "/models/{model}/versions/{version}/infer",
    summary="As without version",
    response_model=InferResponse,
    responses=_INFERRED,
)
async def infer_version(
    request: Request,
    model: schemas.ModelPath,
    version: VersionPath,
    body: Annotated[InferRequest, Body(openapi_examples=EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    _check_version(request, model, version)
    return await infer(request, model, body, timeout_milliseconds)


def _check_version(request: Request, model: str, version: str) -> None:
    """Raises ApiError: 404, another version of it is served."""
    served = service_of(request).catalogue.first(model)
    if version != served.identity.version:
        raise no_such_model(f"{model}, version {version}", [f"{model}, version {served.identity.version}"])


def _metadata(served: LoadedModel) -> ModelMetadata:
    manifest = served.model.manifest
    return ModelMetadata(
        name=served.identity.name,
        versions=[served.identity.version],
        platform="onnxruntime_onnx",
        inputs=[TensorMetadata(name="text", datatype="BYTES", shape=[-1])],
        outputs=[
            TensorMetadata(
                name=name,
                datatype="BYTES" if name in ("token", "label") else "FP32",
                shape=[-1, manifest.hidden_size if name == "embedding" else -1],
            )
            for name in OUTPUTS.get(manifest.task, ())
        ],
    )
