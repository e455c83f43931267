"""OpenAI's `/v1/embeddings`, `/v1/completions` and `/v1/models`, in the form that its SDK sends and reads."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.serving.errors import ErrorDetail
from clozeline.serving.models.catalogue import ANY
from clozeline.serving.protocols.dialects import Dialect, ErrorBody, Words, sentence
from clozeline.serving.protocols.fields import Dimensions, RequestBody, Truncate, texts_of
from clozeline.serving.protocols.house.embed import EMBEDDING, EncodingFormat, embedded, encoded
from clozeline.serving.protocols.openai_completions import COMPLETIONS
from clozeline.serving.protocols.openai_texts import LIST, OpenAITexts, Usage
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation
from clozeline.serving.scheduling.work import LoadedModel

_EMBEDDINGS = "/v1/embeddings"
_CODES = {"no_such_model": "model_not_found", "no_key": "invalid_api_key", "overloaded": "rate_limit_exceeded"}
_TYPES = {429: "rate_limit_error"}


class OpenAIErrorDetail(ErrorDetail):
    type: str


class OpenAIError(ErrorBody):
    error: OpenAIErrorDetail


def _said(status: int, detail: ErrorDetail) -> OpenAIError:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    fields = detail.model_dump() | {"code": _CODES.get(detail.code, detail.code), "type": kind}
    return OpenAIError(error=OpenAIErrorDetail(**fields | {"message": sentence(detail)}))


class EmbeddingsRequest(RequestBody):
    model: Annotated[str, Field(description="A name from /v1/models.")]
    input: OpenAITexts
    encoding_format: Annotated[
        EncodingFormat, Field(description="base64 holds little-endian float32; OpenAI's SDK asks for it.")
    ] = "float"
    dimensions: Dimensions = None
    user: Annotated[str | None, Field(description="Accepted and ignored.")] = None
    truncate: Truncate = False


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class Model(BaseModel):
    id: str = Field(description="Value of `model` in a request.")
    object: Literal["model"] = "model"
    created: int = Field(description="Always 0: a package holds no time, so that its bytes are reproducible.")
    owned_by: str = Field(description="Registry URI or folder from which the model was loaded.")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


EXAMPLES = {
    "one text": Example("One text", {"model": "encoder", "input": "Sort a list in place."}),
    "base64": Example(
        "Several texts, 4 dimensions, as base64",
        {
            "model": "encoder",
            "input": ["Sort a list in place.", "Open a file."],
            "dimensions": 4,
            "encoding_format": "base64",
        },
    ),
}


async def embeddings(call: Call, body: EmbeddingsRequest) -> Response:
    served = call.served(EMBEDDING, body.model, listed=LIST)
    reply = await embedded(call, served, texts_of(body.input), dimensions=body.dimensions, truncate=body.truncate)
    vectors = encoded(reply.answers, body.dimensions, body.encoding_format)
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    usage = {"prompt_tokens": reply.tokens, "total_tokens": reply.tokens}
    content = {"object": "list", "data": data, "model": served.identity.name, "usage": usage}
    return JsonResponse(content, headers=reply.headers)


async def models(call: Call) -> Response:
    return JsonResponse({"object": "list", "data": [_card(served) for served in call.models]})


async def model(call: Call) -> Response:
    found = call.served(ANY, call.request.path_params["model"], listed=LIST)
    return JsonResponse(_card(found), headers=found.identity.headers)


def _card(served: LoadedModel) -> dict[str, object]:
    return Model(id=served.identity.name, created=0, owned_by=served.identity.source).model_dump()


OPENAI = Dialect(
    Words(OpenAIError, _said, unusable=400),
    (
        Operation(
            path=_EMBEDDINGS,
            answer=embeddings,
            summary="Embed texts, in the form of OpenAI's API",
            result_description="One vector of length 1 for each text",
            result=EmbeddingList,
            ability=EMBEDDING,
            body=EmbeddingsRequest,
            examples=EXAMPLES,
            place="input[{}]".format,
        ),
        COMPLETIONS,
        Operation(path=LIST, answer=models, summary="The served models", result=ModelList),
        Operation(
            path="/v1/models/{model}",
            answer=model,
            summary="One model",
            result_description="The model",
            tells="model",
            result=Model,
        ),
    ),
    tag="OpenAI",
)
