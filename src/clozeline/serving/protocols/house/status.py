"""What a server tells of itself: is it up, is it ready, what does it serve, what has it counted."""

from typing import Literal

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.artifacts.evidence import QuantizationScheme
from clozeline.artifacts.manifest import FileRecord, Precision, ScoreFunction, Task
from clozeline.serving.errors import ApiError, problem
from clozeline.serving.models.catalogue import routes_of
from clozeline.serving.protocols.operation import KEYED, LOADING, Call, JsonResponse, Operation
from clozeline.serving.scheduling.work import LoadedModel


class Health(BaseModel):
    status: Literal["live", "ready"]


class ModelCard(BaseModel):
    """One served model, and where its bytes come from."""

    name: str = Field(description="For `model` in a request.")
    source: str = Field(description="The registry URI or folder that it was loaded from.")
    version: str
    sha256: str = Field(description="Of the graph that answers.")
    task: Task
    routes: list[str]
    precision: Precision = Field(description="Of the graph that answers.")
    precision_reason: str = Field(description="Why this one of the two: asked for, found faster here, …")
    family: str
    max_length: int = Field(description="Longest text in tokens, special tokens among them.")
    vocab_size: int
    hidden_size: int
    mask_token: str | None
    labels: list[str]
    label_scores: ScoreFunction = Field(description="From a classifier's logits to scores, if nothing else is asked.")
    decision_threshold: float | None = Field(
        description="Above which score a label is given, where a text can have several; null: the best one is."
    )
    reads_pairs: bool = Field(description="Whether a classifier was trained on two texts at a time, as /rerank asks.")
    quantization: QuantizationScheme | None = Field(description="Of the INT8 graph; null if the package has none.")
    opset: int
    versions: dict[str, str] = Field(description="Of the packages that exported it.")
    lock_sha256: str = Field(description="Of the requirements lock that it was exported with.")
    files: dict[str, FileRecord]


class ModelList(BaseModel):
    models: list[ModelCard]


async def live(call: Call) -> Response:
    """200 as long as the process and its workers answer: restart it when this fails."""
    _check_workers(call)
    return JsonResponse({"status": "live"})


async def ready(call: Call) -> Response:
    """200 between the loading of the models and the signal to stop: send requests only then."""
    if call.service.phase != "ready":
        raise call.service.not_ready()
    _check_workers(call)
    return JsonResponse({"status": "ready"})


async def metrics(call: Call) -> Response:
    """Requests, queue, tokenization, inference, padding, rejections; of each model its version and what tells drift."""
    return Response(call.service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def models(call: Call) -> Response:
    """Name, version, files and origin of each model; the first that answers a route is that route's default."""
    return JsonResponse({"models": [card(served).model_dump() for served in call.models]})


def card(served: LoadedModel) -> ModelCard:
    identity, manifest = served.identity, served.model.manifest
    return ModelCard(
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


def _check_workers(call: Call) -> None:
    if fault := call.service.fault():
        raise _worker_fault(fault)


def _worker_fault(fault: str) -> ApiError:
    return problem(
        503,
        "worker_fault",
        "a thread that runs models is not well",
        given=fault,
        expected="threads that answer",
        do="restart the server; its log has the traceback",
    )


OPERATIONS = (
    Operation(
        path="/health/live",
        answer=live,
        summary="Is the process well?",
        refusals={503: "A worker thread has ended, or does not come back"},
        result=Health,
    ),
    Operation(path="/health/ready", answer=ready, summary="Are the models loaded?", refusals=LOADING, result=Health),
    Operation(
        path="/health",
        answer=ready,
        name="health",
        summary="The same as /health/ready",
        refusals=LOADING,
        result=Health,
    ),
    Operation(  # MLflow's clients ask so, and hear of readiness as everybody does
        path="/ping", answer=ready, name="ping", summary="As /health/ready", refusals=LOADING, result=Health
    ),
    Operation(
        path="/metrics",
        answer=metrics,
        summary="What is counted, for Prometheus",
        told="Prometheus text",
        refusals=KEYED,
        result=CONTENT_TYPE_LATEST,
    ),
    Operation(path="/models", answer=models, summary="What is served", result=ModelList),
)
