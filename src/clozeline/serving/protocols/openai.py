"""OpenAI's `/v1/embeddings` and `/v1/models`, as its SDK asks and reads them."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Request, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from clozeline.serving.bodies import JsonRoute
from clozeline.serving.models.loading import LoadedModel
from clozeline.serving.models.service import service_of
from clozeline.serving.openapi import answered, not_ready
from clozeline.serving.protocols.dialects import OPENAI
from clozeline.serving.protocols.model_prefix import wanted_model
from clozeline.serving.responses import JsonResponse
from clozeline.serving.routes import texts_of
from clozeline.serving.schemas import (
    TEXT_TAG,
    TEXTS_TAG,
    Dimensions,
    ModelPath,
    RequestBody,
    Text,
    TimeoutMilliseconds,
    Truncate,
    inputs_kind,
)
from clozeline.serving.vectors import EncodingFormat, check_dimensions, encoded

router = APIRouter(prefix="/v1", route_class=JsonRoute, tags=["OpenAI"])

_MAX_TEXTS = 2048
_LIST = "/v1/models"


def _no_token_ids(given: Any) -> Any:
    first = given[0] if isinstance(given, list) and given else None
    if isinstance(first, int) or (isinstance(first, list) and first and isinstance(first[0], int)):
        raise PydanticCustomError(
            "token_ids", "text: token ids are those of another tokenizer (LangChain: check_embedding_ctx_length=False)"
        )
    return given


_TEXTS = f"a text, or a list of 1 to {_MAX_TEXTS} texts"
_Input = Annotated[
    Annotated[Text, Tag(TEXT_TAG)] | Annotated[list[Text], Field(min_length=1, max_length=_MAX_TEXTS), Tag(TEXTS_TAG)],
    Field(description=f"{_TEXTS.capitalize()}; no token ids, which would be those of another tokenizer."),
    Discriminator(inputs_kind, custom_error_type="inputs_type", custom_error_message=_TEXTS),
    BeforeValidator(_no_token_ids),
]


class EmbeddingsRequest(RequestBody):
    model: Annotated[str, Field(description="A name from /v1/models.")]
    input: _Input
    encoding_format: Annotated[
        EncodingFormat, Field(description="base64: of little-endian float32, as OpenAI's SDK asks for.")
    ] = "float"
    dimensions: Dimensions = None
    user: Annotated[str | None, Field(description="Read, and used for nothing.")] = None
    truncate: Truncate = False


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    prompt_tokens: int = Field(description="Special tokens among them.")
    total_tokens: int


class EmbeddingList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class Model(BaseModel):
    id: str = Field(description="For `model` in a request.")
    object: Literal["model"] = "model"
    created: int = Field(description="Always 0: a package tells no time, so that the same model is the same bytes.")
    owned_by: str = Field(description="The registry URI or folder that it was loaded from.")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


EXAMPLES: dict[str, Example] = {
    "one text": {"summary": "One text", "value": {"model": "encoder", "input": "Sort a list in place."}},
    "base64": {
        "summary": "Several texts, 4 dimensions, as base64",
        "value": {
            "model": "encoder",
            "input": ["Sort a list in place.", "Open a file."],
            "dimensions": 4,
            "encoding_format": "base64",
        },
    },
}


@router.post(
    "/embeddings",
    summary="Embed texts, as OpenAI's SDK asks",
    response_model=EmbeddingList,
    responses=answered("One vector of length 1 for each text", OPENAI),
)
async def embeddings(
    request: Request,
    body: Annotated[EmbeddingsRequest, Body(openapi_examples=EXAMPLES)],
    timeout_milliseconds: TimeoutMilliseconds = None,
) -> Response:
    service = service_of(request)
    served = service.catalogue.embedder(wanted_model(request, body.model), route="/v1/embeddings", listed=_LIST)
    check_dimensions(served.model, body.dimensions)
    texts = texts_of(body.input)
    reply = await service.asking.ask(
        request, served, texts, lambda: served.model.embedding(texts, truncate=body.truncate), timeout_milliseconds
    )
    vectors = encoded(reply.answers, body.dimensions, body.encoding_format)
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    usage = {"prompt_tokens": reply.tokens, "total_tokens": reply.tokens}
    content = {"object": "list", "data": data, "model": served.identity.name, "usage": usage}
    return JsonResponse(content, headers=reply.headers)


@router.get("/models", summary="What is served", response_model=ModelList, responses=not_ready(OPENAI))
async def models(request: Request) -> Response:
    cards = [_card(served) for served in service_of(request).catalogue]
    return JsonResponse({"object": "list", "data": cards})


@router.get(
    "/models/{model}",
    summary="One model",
    response_model=Model,
    responses=answered("The model", OPENAI, is_timed=False),
)
async def model(request: Request, model: ModelPath) -> Response:
    found = service_of(request).catalogue.first(wanted_model(request, model), listed=_LIST)
    return JsonResponse(_card(found), headers=found.identity.headers)


def _card(served: LoadedModel) -> dict[str, object]:
    return Model(id=served.identity.name, created=0, owned_by=served.identity.source).model_dump()
