"""Paths about the server itself: health, readiness, models, metrics, and feedback.

Feedback is the right answer to a request that was answered before.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Annotated, Literal

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.inference.fields import StrictModel
from clozeline.records.package import FileRecord, Precision, QuantizationScheme, ScoreFunction, Task
from clozeline.serving import errors, loading
from clozeline.serving.http.bodies import MAX_TEXTS
from clozeline.serving.http.house_labels import TaggedSpan, entities_of
from clozeline.serving.http.operation import ASKED, KEYED, LOADING, Call, JsonResponse, Operation
from clozeline.serving.models import REQUEST_ID, GivenAnswer

_SCORED = "/classify, /tag, /answer or /fill-mask"
_REFUSALS = {status: ASKED[status] for status in (400, 401, 408, 413, 415, 422, 503)} | {
    404: "No answer under this request id"
}


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
    """Is the process alive?

    Answers 200 while the process and its worker threads run. Restart the process if this fails.
    """
    _check_workers(call)
    return JsonResponse({"status": "live"})


async def ready(call: Call) -> Response:
    """Are the models loaded?

    Answers 200 from the end of loading until the signal to stop. Send requests only during this time.
    """
    if call.service.phase != "ready":
        raise call.service.not_ready()
    _check_workers(call)
    return JsonResponse({"status": "ready"})


async def metrics(call: Call) -> Response:
    """Metrics for Prometheus.

    Counts of requests and refusals, times of each phase, padding, and versions and drift signals of the models.

    Returns:
        Metrics in the Prometheus text format.
    """
    return Response(call.service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def models(call: Call) -> Response:
    """The served models.

    Name, version, files and origin of each model.

    The first model that answers a route is its default; /zero-shot prefers an entailment model, and /classify a
    model of single texts.
    """
    return JsonResponse({"models": [card(served, call.routes(served)).model_dump() for served in call.models]})


def card(served: loading.LoadedModel, routes: list[str]) -> ModelCard:
    manifest = served.model.manifest
    facts = dict(manifest) | {one.name: getattr(served.identity, one.name) for one in fields(loading.Identity)}
    scheme = None if manifest.quantization is None else str(manifest.quantization)
    facts |= {"routes": routes, "mask_token": manifest.special_tokens.mask_token, "scheme": scheme}
    return ModelCard.model_validate({name: facts[name] for name in ModelCard.model_fields})


def _check_workers(call: Call) -> None:
    if fault := call.service.fault():
        raise errors.refused("worker_fault", given=fault, expected="running worker threads")


_READY = Operation(path="/health/ready", answer=ready, refusals=LOADING, result=Health)
OPERATIONS = (
    Operation(path="/health/live", answer=live, refusals={503: "A worker thread ended or hangs"}, result=Health),
    _READY,
    replace(_READY, path="/health", name="health", summary="Same as /health/ready"),
    replace(_READY, path="/ping", name="ping", summary="Same as /health/ready"),  # of MLflow's clients
    Operation(path="/metrics", answer=metrics, refusals=KEYED, result=CONTENT_TYPE_LATEST),
    Operation(path="/models", answer=models, result=ModelList),
)


class FeedbackRequest(StrictModel):
    request_id: Annotated[str, Field(description=f"Header `{REQUEST_ID}` of an answer by {_SCORED}.")]
    right: Annotated[
        list[str | list[TaggedSpan]],
        Field(
            min_length=1,
            max_length=MAX_TEXTS,
            description="Right answer to each text of that request, in order: a label, or after /tag the list of its "
            "entities; after /answer the one right span; after /fill-mask the right word for each mask.",
        ),
    ]


class FeedbackResponse(BaseModel):
    model: str
    version: str
    num_right: int = Field(description="Answers that were right.")
    num_wrong: int


async def feedback(call: Call, body: FeedbackRequest) -> Response:
    """Tell the right answer to an earlier request.

    Counts whether the best answer to each text was right. Feedback on a request counts once; no text is stored.

    Returns:
        How many of its answers were right.
    """
    given = call.service.given.get(body.request_id)
    if given is None:
        raise errors.refused(
            "no_such_request",
            given=body.request_id,
            expected=f"the header {REQUEST_ID} of one of the last answers by {_SCORED}, not scored before",
            param="request_id",
        )
    _check(body.right, given)
    del call.service.given[body.request_id]  # feedback counts once
    num_right = given.num_right([right if isinstance(right, str) else entities_of(right) for right in body.right])
    num_wrong = len(body.right) - num_right
    call.service.metrics.scored(given.model, num_right=num_right, num_wrong=num_wrong)
    response = FeedbackResponse(model=given.model, version=given.version, num_right=num_right, num_wrong=num_wrong)
    return JsonResponse(response.model_dump())


def _check(right: Sequence[str | list[TaggedSpan]], given: GivenAnswer) -> None:
    """Raise ApiError (422) unless there is a right answer of the same kind for each answer."""
    kind = "lists of entities" if given.are_entities else "texts"
    if len(right) != len(given.hashes) or any(isinstance(one, str) == given.are_entities for one in right):
        raise errors.refused(
            "other_answers",
            given=f"{len(right)}, {sum(isinstance(one, str) for one in right)} of them texts",
            expected=f"{len(given.hashes)} {kind}",
            param="right",
        )


FEEDBACK = Operation(path="/feedback", answer=feedback, tells="nothing", refusals=_REFUSALS, result=FeedbackResponse)
