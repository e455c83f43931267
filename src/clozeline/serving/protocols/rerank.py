"""text-embeddings-inference's /rerank: texts in the order in which they answer a query.

It asks a model that reads both at once. As there, an encoder's vectors are no stand-in: /similarity compares them.
"""

from typing import Annotated

from fastapi import APIRouter, Body, Request, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field

from clozeline.serving import schemas
from clozeline.serving.bodies import JsonRoute
from clozeline.serving.models.catalogue import RERANK
from clozeline.serving.models.service import service_of
from clozeline.serving.openapi import answered
from clozeline.serving.protocols.dialects import HUGGING_FACE
from clozeline.serving.protocols.model_prefix import wanted_model
from clozeline.serving.responses import JsonResponse

router = APIRouter(route_class=JsonRoute, tags=["text-embeddings-inference"])


class RerankRequest(schemas.RequestBody):
    query: schemas.Text
    texts: schemas.Texts
    raw_scores: Annotated[bool, Field(description="The logits, instead of probabilities.")] = False
    return_text: Annotated[bool, Field(description="Send the texts back beside their scores.")] = False
    truncate: schemas.Truncate = False
    truncation_direction: schemas.TruncationDirection = "right"


class Rank(BaseModel):
    index: int = Field(ge=0, description="Of the text among those sent.")
    score: float = Field(description="Probability that it answers the query, or the logit if `raw_scores` was set.")
    text: str | None = None


RERANK_EXAMPLES: dict[str, Example] = {
    "two": {
        "summary": "Two texts for a query",
        "value": {"query": "How do I sort a list?", "texts": ["Open a file.", "Order the items."], "return_text": True},
    }
}


@router.post(
    "/rerank",
    summary="Order texts by how well they answer a query",
    response_model=list[Rank],
    response_model_exclude_none=True,
    responses=answered("The texts by their places, best first", HUGGING_FACE),
)
async def rerank(
    request: Request,
    body: Annotated[RerankRequest, Body(openapi_examples=RERANK_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    service = service_of(request)
    served = service.catalogue.pair_classifier(RERANK, wanted_model(request))
    pairs = [(body.query, text) for text in body.texts]
    label = served.model.relevant_label
    reply = await service.asking.ask(
        request,
        served,
        [text for pair in pairs for text in pair],
        lambda: served.model.classifying(
            pairs,
            top_k=len(served.model.manifest.labels),
            truncate=body.truncate,
            function="none" if body.raw_scores else served.model.relevance_function,
        ),
        timeout_milliseconds,
    )
    scores = [next(one.score for one in scores if one.label == label) for scores in reply.answers]
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    ranks = [
        {"index": place, "score": scores[place], **({"text": body.texts[place]} if body.return_text else {})}
        for place in order
    ]
    return JsonResponse(ranks, headers=reply.headers)
