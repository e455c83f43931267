"""text-embeddings-inference's /rerank: orders texts by how well they answer a query.

It needs a model that reads query and text together. Embeddings do not replace it, as there: /similarity compares them.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.serving.protocols.fields import RequestBody, Text, Texts, Truncate, TruncationDirection
from clozeline.serving.protocols.house.classify import CLASSIFYING_PAIRS, labelled
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation

RERANKING = replace(
    CLASSIFYING_PAIRS,
    has=lambda model: model.relevant_label is not None,
    missing="scores the relevance of a text",
    expected="a classifier of pairs, with one score or a label such as `relevant`",
)


class RerankRequest(RequestBody):
    query: Text
    texts: Texts
    raw_scores: Annotated[bool, Field(description="Return logits instead of probabilities.")] = False
    return_text: Annotated[bool, Field(description="Return the texts with their scores.")] = False
    truncate: Truncate = False
    truncation_direction: TruncationDirection = "right"


class Rank(BaseModel):
    index: int = Field(ge=0, description="Index of the text in the request.")
    score: float = Field(description="Probability that the text answers the query; the logit if `raw_scores` is set.")
    text: str | None = None


async def rerank(call: Call, body: RerankRequest) -> Response:
    served = call.served(RERANKING)
    pairs = [(body.query, text) for text in body.texts]
    function = "none" if body.raw_scores else served.model.relevance_function
    reply = await labelled(call, served, pairs, truncate=body.truncate, function=function)
    label = served.model.relevant_label
    scores = [next(one.score for one in scores if one.label == label) for scores in reply.answers]
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    ranks = [
        {"index": place, "score": scores[place], **({"text": body.texts[place]} if body.return_text else {})}
        for place in order
    ]
    return JsonResponse(ranks, headers=reply.headers)


_RANKED = ["Open a file.", "Order the items."]
_EXAMPLE = {"query": "How do I sort a list?", "texts": _RANKED, "return_text": True}
RERANK = Operation(
    path="/rerank",
    answer=rerank,
    summary="Order texts by how well they answer a query",
    result_description="Index and score of each text, best first",
    result=list[Rank],
    ability=RERANKING,
    body=RerankRequest,
    examples={"two": Example("Two texts for a query", _EXAMPLE)},
    place="texts[{}]".format,
)
