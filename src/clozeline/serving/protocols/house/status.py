"""Paths about the server itself: health, readiness, models and metrics."""

from typing import Literal

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.artifacts.export.evidence import QuantizationScheme
from clozeline.artifacts.export.manifest import FileRecord, Precision, ScoreFunction, Task
from clozeline.serving.errors import ApiError, problem
from clozeline.serving.protocols.operation import KEYED, LOADING, Call, JsonResponse, Operation
from clozeline.serving.scheduling.work import LoadedModel


class Health(BaseModel):
    status: Literal["live", "ready"]


class ModelCard(BaseModel):
    """One served model and the origin of its files."""

    name: str = Field(description="Value of `model` in a request.")
    source: str = Field(description="Registry URI or folder from which the model was loaded.")
    version: str
    sha256: str = Field(description="SHA-256 of the served graph.")
    task: Task
    routes: list[str]
    precision: Precision = Field(description="Precision of the served graph.")
    precision_reason: str = Field(description="Why this precision was chosen: requested, measured as faster, …")
    family: str
    max_length: int = Field(description="Maximum number of tokens of a text, including special tokens.")
    vocab_size: int
    hidden_size: int
    mask_token: str | None
    labels: list[str]
    label_scores: ScoreFunction = Field(description="Default function from a classifier's logits to scores.")
    decision_threshold: float | None = Field(
        description="Score above which a label is assigned, if a text can have several; null: the best label."
    )
    reads_pairs: bool = Field(description="Whether a classifier was trained on pairs of texts, as /rerank needs.")
    quantization: QuantizationScheme | None = Field(
        description="Quantization of the INT8 graph; null if the package has none."
    )
    scheme: str | None = Field(description="`quantization` in one line, in the terms of `export.ladder`.")
    opset: int
    versions: dict[str, str] = Field(description="Versions of the Python packages that exported the model.")
    lock_sha256: str = Field(description="SHA-256 of the requirements lock at export.")
    files: dict[str, FileRecord]


class ModelList(BaseModel):
    models: list[ModelCard]


async def live(call: Call) -> Response:
    """Answers 200 while the process and its worker threads run. Restart the process if this fails."""
    _check_workers(call)
    return JsonResponse({"status": "live"})


async def ready(call: Call) -> Response:
    """Answers 200 from the end of loading until the signal to stop. Send requests only during this time."""
    if call.service.phase != "ready":
        raise call.service.not_ready()
    _check_workers(call)
    return JsonResponse({"status": "ready"})


async def metrics(call: Call) -> Response:
    """Counts of requests and refusals, times of each phase, padding, and versions and drift signals of the models."""
    return Response(call.service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def models(call: Call) -> Response:
    """Name, version, files and origin of each model.

    The first model that answers a route is its default; /zero-shot prefers an entailment model, and /classify a
    model of single texts.
    """
    return JsonResponse({"models": [card(served, call.routes(served)).model_dump() for served in call.models]})


def card(served: LoadedModel, routes: list[str]) -> ModelCard:
    identity, manifest = served.identity, served.model.manifest
    return ModelCard(
        name=identity.name,
        source=identity.source,
        version=identity.version,
        sha256=identity.sha256,
        task=manifest.task,
        routes=routes,
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
        scheme=None if manifest.quantization is None else str(manifest.quantization),
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
        "a worker thread failed",
        given=fault,
        expected="running worker threads",
        do="restart the server; see its log for the cause",
    )


OPERATIONS = (
    Operation(
        path="/health/live",
        answer=live,
        summary="Is the process alive?",
        refusals={503: "A worker thread ended or hangs"},
        result=Health,
    ),
    Operation(path="/health/ready", answer=ready, summary="Are the models loaded?", refusals=LOADING, result=Health),
    Operation(
        path="/health",
        answer=ready,
        name="health",
        summary="Same as /health/ready",
        refusals=LOADING,
        result=Health,
    ),
    Operation(  # MLflow clients check readiness here
        path="/ping", answer=ready, name="ping", summary="Same as /health/ready", refusals=LOADING, result=Health
    ),
    Operation(
        path="/metrics",
        answer=metrics,
        summary="Metrics for Prometheus",
        result_description="Metrics in the Prometheus text format",
        refusals=KEYED,
        result=CONTENT_TYPE_LATEST,
    ),
    Operation(path="/models", answer=models, summary="The served models", result=ModelList),
)
