"""The Open Inference Protocol, version 2, over HTTP: what the clients of Triton and KServe speak.

Texts come as a tensor `text`, pairs of them as `text` and `text_pair`, questions as `question` and `context`. An
encoder answers with `embedding`, or with `token` and `score` where it is to fill a mask; a classifier with `label` and
`score`; a tagger with `entities`, a list in JSON for each text; a question answerer with `answer` and `score`, and with
its place in the context, in characters, `start` and `end`.
"""

from collections.abc import Callable, Coroutine, Mapping
from importlib.metadata import version as version_of
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Request, Response

from clozeline.inference.manifest import Manifest, Task
from clozeline.serving import schemas, status_routes
from clozeline.serving.models.catalogue import no_such_model
from clozeline.serving.models.loading import LoadedModel
from clozeline.serving.models.service import service_of
from clozeline.serving.openapi import answered, not_ready
from clozeline.serving.protocols import tensors
from clozeline.serving.protocols.dialects import INFERENCE_PROTOCOL
from clozeline.serving.protocols.infer_parameters import check_parameters
from clozeline.serving.protocols.infer_schemas import (
    EXAMPLES,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelReady,
    ServerMetadata,
    TensorMetadata,
)
from clozeline.serving.protocols.model_prefix import wanted_model
from clozeline.serving.protocols.named_outputs import (
    DATATYPES,
    OUTPUTS,
    Answered,
    Asked,
    OutputName,
    check_inputs,
    encoded,
    inputs_of,
    labelled,
    outputs_of,
)
from clozeline.serving.protocols.span_outputs import found_answers, found_entities
from clozeline.serving.responses import JsonResponse

router = APIRouter(prefix="/v2", route_class=tensors.TensorRoute, tags=["Open Inference Protocol"])

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
    served = service_of(request).catalogue.first(wanted_model(request, model))
    return JsonResponse(_metadata(served).model_dump(), headers=served.identity.headers)


@router.get("/models/{model}/ready", summary="Is it loaded?", response_model=ModelReady, responses=_NAMED)
async def model_ready(request: Request, model: schemas.ModelPath) -> Response:
    served = service_of(request).catalogue.first(wanted_model(request, model))
    return JsonResponse({"name": model, "ready": True}, headers=served.identity.headers)


@router.post("/models/{model}/infer", summary="Ask a model", response_model=InferResponse, responses=_INFERRED)
async def infer(
    request: Request,
    model: schemas.ModelPath,
    body: Annotated[InferRequest, Body(openapi_examples=EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    service = service_of(request)
    served = service.catalogue.answering("/v2/models/{model}/infer", wanted_model(request, model))
    manifest = served.model.manifest
    task = manifest.task
    check_parameters(task, body.parameters)
    asked = Asked(
        request,
        model,
        _inputs(request, manifest, body),
        outputs_of(task, body.outputs),
        body.parameters,
        timeout_milliseconds,
    )
    values, headers = await _ANSWERS[task](service, asked)
    binary = {output.name: output.parameters.binary_data for output in body.outputs}
    everywhere = body.parameters.binary_data_output
    outputs = [
        tensors.OutputTensor(name, values[name], everywhere if binary.get(name) is None else bool(binary[name]))
        for name in asked.outputs
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
    served = service_of(request).catalogue.first(wanted_model(request, model))
    if version != served.identity.version:
        raise no_such_model(f"{model}, version {version}", [f"{model}, version {served.identity.version}"])


def _inputs(request: Request, manifest: Manifest, body: InferRequest) -> dict[tensors.InputName, list[str]]:
    check_inputs(manifest, [tensor.name for tensor in body.inputs])
    strings = tensors.strings_of(body.inputs, request.state.behind_json)
    return {
        tensor.name: schemas.checked_texts(texts, f"inputs[{number}].data")
        for number, (tensor, texts) in enumerate(zip(body.inputs, strings, strict=True))
    }


def _metadata(served: LoadedModel) -> ModelMetadata:
    manifest = served.model.manifest
    second_axes: dict[OutputName, int] = {"embedding": manifest.hidden_size, "entities": 1}
    return ModelMetadata(
        name=served.identity.name,
        versions=[served.identity.version],
        platform="onnxruntime_onnx",
        inputs=[TensorMetadata(name=name, datatype="BYTES", shape=[-1]) for name in inputs_of(manifest)],
        outputs=[
            TensorMetadata(name=name, datatype=DATATYPES[name], shape=[-1, second_axes.get(name, -1)])
            for name in OUTPUTS[manifest.task]
        ],
    )


_ANSWERS: Mapping[Task, Callable[..., Coroutine[Any, Any, Answered]]] = MappingProxyType(
    {
        "fill-mask": encoded,
        "feature-extraction": encoded,
        "text-classification": labelled,
        "token-classification": found_entities,
        "question-answering": found_answers,
    }
)
