"""The routes that tell about the server itself: is it up, is it ready, what does it serve."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse

from clozeline.serving import schemas
from clozeline.serving.errors import ErrorEnvelope
from clozeline.serving.models.catalogue import routes_of
from clozeline.serving.models.loading import LoadedModel
from clozeline.serving.models.service import service_of
from clozeline.serving.openapi import NOT_READY, Responses, beside_text, not_ready
from clozeline.serving.protocols.dialects import refusal
from clozeline.serving.refusals import worker_fault
from clozeline.serving.responses import JsonResponse

router = APIRouter()


_UNWELL: Responses = {503: {"model": ErrorEnvelope, "description": "A worker thread has ended, or does not come back"}}
_COUNTS: Responses = {
    200: {"description": "Prometheus text", "content": {CONTENT_TYPE_LATEST: {}}},
    **beside_text({401: not_ready()[401]}),
}


@router.get("/health/live", summary="Is the process well?", response_model=schemas.Health, responses=_UNWELL)
async def live(request: Request) -> Response:
    """200 as long as the process and its workers answer: restart it when this fails."""
    fault = service_of(request).fault()
    if fault:
        return refusal(worker_fault(fault), request.url.path)
    return JsonResponse({"status": "live"})


@router.get("/health/ready", summary="Are the models loaded?", response_model=schemas.Health, responses=NOT_READY)
async def ready(request: Request) -> Response:
    """200 between the loading of the models and the signal to stop: send requests only then."""
    service = service_of(request)
    if service.phase != "ready":
        return refusal(service.not_ready(), request.url.path)
    if fault := service.fault():
        return refusal(worker_fault(fault), request.url.path)
    return JsonResponse({"status": "ready"})


@router.get("/health", summary="The same as /health/ready", response_model=schemas.Health, responses=NOT_READY)
async def health(request: Request) -> Response:
    return await ready(request)


@router.get("/metrics", summary="What is counted, for Prometheus", response_class=PlainTextResponse, responses=_COUNTS)
async def metrics(request: Request) -> Response:
    """Requests, queue, tokenization, inference, padding, rejections; of each model its version and what tells drift."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/models", summary="What is served", response_model=schemas.ModelList, responses=not_ready())
async def models(request: Request) -> Response:
    """Name, version, files and origin of each model; the first that answers a route is that route's default."""
    cards = [card(served) for served in service_of(request).catalogue]
    return JsonResponse({"models": [card.model_dump() for card in cards]})


def card(served: LoadedModel) -> schemas.ModelCard:
    identity, manifest = served.identity, served.model.manifest
    return schemas.ModelCard(
        name=identity.name,
        source=identity.source,
        version=identity.version,
        sha256=identity.sha256,
        task=manifest.task,
        routes=routes_of(served.model),
        precision=identity.precision,
        precision_reason=identity.precision_reason,
        family=manifest.family,
        max_length=manifest.max_length,
        vocab_size=manifest.vocab_size,
        hidden_size=manifest.hidden_size,
        mask_token=manifest.special_tokens.mask_token,
        labels=list(manifest.labels),
        label_scores=manifest.label_scores,
        decision_threshold=manifest.decision_threshold,
        reads_pairs=manifest.reads_pairs,
        quantization=manifest.quantization,
        opset=manifest.opset,
        versions=manifest.versions,
        lock_sha256=manifest.lock_sha256,
        files=manifest.files,
    )
