"""Hugging Face's pipelines: `{"inputs", "parameters"}`, as `huggingface_hub.InferenceClient` posts it to a URL.

Labels come nested here, a list for each text; /predict has them flat.
"""

from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from clozeline.serving import routes, schemas, span_routes, span_schemas
from clozeline.serving.bodies import JsonRoute
from clozeline.serving.openapi import (
    ANSWER_EXAMPLES,
    CLASSIFY_EXAMPLES,
    EMBED_EXAMPLES,
    FILL_MASK_EXAMPLES,
    TAG_EXAMPLES,
    answered,
)
from clozeline.serving.protocols import embeddings_inference
from clozeline.serving.protocols.dialects import HUGGING_FACE
from clozeline.serving.protocols.embeddings_inference import SIMILARITY_EXAMPLES, SimilarityRequest

router = APIRouter(prefix="/pipeline", route_class=JsonRoute, tags=["Hugging Face"])


@router.post(
    "/fill-mask",
    summary="Fill the masks of a text",
    response_model=schemas.FillMaskResponse,
    responses=answered("Candidates of a mask, best first: for one text, or a list of them, as was sent", HUGGING_FACE),
)
async def fill_mask(
    request: Request,
    body: Annotated[schemas.FillMaskRequest, Body(openapi_examples=FILL_MASK_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    return await routes.fill_mask(request, body, timeout_milliseconds)


@router.post(
    "/feature-extraction",
    summary="Embed texts as vectors of length 1",
    response_model=schemas.EmbedResponse,
    responses=answered("One vector for each text", HUGGING_FACE),
)
async def feature_extraction(
    request: Request,
    body: Annotated[schemas.EmbedRequest, Body(openapi_examples=EMBED_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    return await routes.embed(request, body, timeout_milliseconds)


@router.post(
    "/text-classification",
    summary="Label texts, or pairs of them",
    response_model=schemas.ClassifyResponse,
    responses=answered("For each text its likeliest labels, best first", HUGGING_FACE),
)
async def text_classification(
    request: Request,
    body: Annotated[schemas.ClassifyRequest, Body(openapi_examples=CLASSIFY_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    return await routes.classify(request, body, timeout_milliseconds)


@router.post(
    "/token-classification",
    summary="Find the entities of a text",
    response_model=span_schemas.TagResponse,
    responses=answered("The entities of a text in its order; of several texts, a list for each", HUGGING_FACE),
)
async def token_classification(
    request: Request,
    body: Annotated[span_schemas.TagRequest, Body(openapi_examples=TAG_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    return await span_routes.tag(request, body, timeout_milliseconds)


@router.post(
    "/question-answering",
    summary="Answer a question from a context",
    response_model=span_schemas.AnswerResponse,
    responses=answered("The best answer; more than one, if asked for", HUGGING_FACE),
)
async def question_answering(
    request: Request,
    body: Annotated[span_schemas.AnswerRequest, Body(openapi_examples=ANSWER_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    return await span_routes.answer(request, body, timeout_milliseconds)


@router.post(
    "/sentence-similarity",
    summary="How near one sentence is to others",
    response_model=list[float],
    responses=answered("The cosine with each of the sentences, in their order", HUGGING_FACE),
)
async def sentence_similarity(
    request: Request,
    body: Annotated[SimilarityRequest, Body(openapi_examples=SIMILARITY_EXAMPLES)],
    timeout_milliseconds: schemas.TimeoutMilliseconds = None,
) -> Response:
    return await embeddings_inference.similarity(request, body, timeout_milliseconds)
