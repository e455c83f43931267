"""OpenAI's `/v1/embeddings`, `/v1/completions` and `/v1/models`, in the form that its SDK sends and reads."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from clozeline.inference import completer, fields
from clozeline.inference.fields import StrictModel
from clozeline.serving import errors, loading
from clozeline.serving.http import bodies, house_texts, operation
from clozeline.serving.models import ANY

LIST = "/v1/models"
_MAX_TEXTS = 2048
_TEXTS = f"a text, or a list of 1 to {_MAX_TEXTS} texts"
_Stop = Annotated[
    Annotated[fields.Stop, Tag(bodies.TEXT_TAG)] | Annotated[fields.Stops, Tag(bodies.TEXTS_TAG)],
    Field(description="The answer ends before this string, or before any of several."),
    Discriminator(
        bodies.inputs_kind,
        custom_error_type="stop_type",
        custom_error_message=f"a string, or at most {fields.MAX_STOPS} of them",
    ),
]
_Zero = Annotated[float, Field(ge=0, le=0, description="Only 0 is supported.", strict=False)]
_EMBEDDINGS = "/v1/embeddings"
_CODES = {"no_such_model": "model_not_found", "no_key": "invalid_api_key", "overloaded": "rate_limit_exceeded"}
_TYPES = {429: "rate_limit_error"}


def _no_token_ids(given: Any) -> Any:
    first = given[0] if isinstance(given, list) and given else None
    if isinstance(first, int) or (isinstance(first, list) and first and isinstance(first[0], int)):
        raise PydanticCustomError(
            "token_ids",
            "text, because token ids are those of another tokenizer (LangChain: check_embedding_ctx_length=False)",
        )
    return given


OpenAITexts = Annotated[
    Annotated[fields.Text, Tag(bodies.TEXT_TAG)]
    | Annotated[list[fields.Text], Field(min_length=1, max_length=_MAX_TEXTS), Tag(bodies.TEXTS_TAG)],
    Field(description=f"{_TEXTS.capitalize()}. Token ids are refused, because they are those of another tokenizer."),
    Discriminator(bodies.inputs_kind, custom_error_type="inputs_type", custom_error_message=_TEXTS),
    BeforeValidator(_no_token_ids),
]


class Usage(BaseModel):
    prompt_tokens: int = Field(description="Number of tokens, including special tokens.")
    total_tokens: int


def _in_one_piece(given: object) -> object:
    if given is True:
        raise PydanticCustomError("no_stream", "false, because an answer comes in one piece")
    return given


class CompletionsRequest(StrictModel):
    model: Annotated[str, Field(description="A name from /v1/models.")]
    prompt: OpenAITexts
    max_tokens: fields.NewTokens = 16
    temperature: fields.Temperature = 1.0
    top_p: fields.TopP = 1.0
    seed: fields.Seed | None = None
    stop: _Stop | None = None
    echo: bool = Field(default=False, description="Put the prompt before its continuation.")
    n: Literal[1] = 1
    best_of: Literal[1] = 1
    frequency_penalty: _Zero = 0.0
    presence_penalty: _Zero = 0.0
    stream: Annotated[Literal[False], BeforeValidator(_in_one_piece)] = False
    user: str | None = Field(default=None, description="Accepted and ignored.")
    truncate: house_texts.CutBeginning = False

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, given: Any) -> Any:
        """Let null stand for the default, as in OpenAI's API."""
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given

    @property
    def decoding(self) -> completer.Decoding:
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return completer.Decoding(self.max_tokens, self.temperature, self.top_p, self.seed or 0, stops)


class Choice(BaseModel):
    index: int
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class CompletionUsage(Usage):
    completion_tokens: int = Field(description="Number of new tokens.")


class Completions(BaseModel):
    id: str = Field(description="Always empty: answers are not kept.")
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(description="Always 0: the same request gets the same bytes.")
    model: str
    choices: list[Choice]
    usage: CompletionUsage


async def completions(call: operation.Call, body: CompletionsRequest) -> Response:
    """Continue texts, in the form of OpenAI's API.

    Returns:
        One continuation for each text.
    """
    served = call.served(house_texts.COMPLETING, body.model, listed=LIST)
    texts = bodies.texts_of(body.prompt)
    reply = await house_texts.continued(call, served, texts, body.decoding, truncate=body.truncate)
    choices = [
        {
            "index": index,
            "text": (texts[index] if body.echo else "") + one.text,
            "finish_reason": one.finish_reason,
            "logprobs": None,
        }
        for index, one in enumerate(reply.answers)
    ]
    num_new = sum(len(one.tokens) for one in reply.answers)
    num_given = sum(one.num_read for one in reply.answers)
    usage = {"prompt_tokens": num_given, "completion_tokens": num_new, "total_tokens": num_given + num_new}
    content = {"id": "", "object": "text_completion", "created": 0, "model": served.identity.name}
    return operation.JsonResponse(content | {"choices": choices, "usage": usage}, headers=reply.headers)


COMPLETIONS = operation.Operation(
    path="/v1/completions",
    answer=completions,
    result=Completions,
    ability=house_texts.COMPLETING,
    place="prompt[{}]".format,
)


class OpenAIErrorDetail(errors.ErrorDetail):
    type: str


class OpenAIError(operation.ErrorBody):
    error: OpenAIErrorDetail


def _said(status: int, detail: errors.ErrorDetail) -> OpenAIError:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    told = detail.model_dump() | {"code": _CODES.get(detail.code, detail.code), "type": kind}
    return OpenAIError(error=OpenAIErrorDetail(**told | {"message": operation.sentence(detail)}))


class EmbeddingsRequest(StrictModel):
    model: Annotated[str, Field(description="A name from /v1/models.")]
    input: OpenAITexts
    encoding_format: house_texts.EncodingFormat = Field(
        default="float", description="base64 holds little-endian float32; OpenAI's SDK asks for it."
    )
    dimensions: bodies.Dimensions = None
    user: str | None = Field(default=None, description="Accepted and ignored.")
    truncate: fields.Truncate = False


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class OpenAIModel(BaseModel):
    model_config = ConfigDict(title="Model")

    id: str = Field(description="Value of `model` in a request.")
    object: Literal["model"] = "model"
    created: int = Field(description="Always 0: a package holds no time, so that its bytes are reproducible.")
    owned_by: str = Field(description="Registry URI or folder from which the model was loaded.")


class OpenAIModelList(BaseModel):
    model_config = ConfigDict(title="ModelList")

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


async def embeddings(call: operation.Call, body: EmbeddingsRequest) -> Response:
    """Embed texts, in the form of OpenAI's API.

    Returns:
        One vector of length 1 for each text.
    """
    served = call.served(house_texts.EMBEDDING, body.model, listed=LIST)
    reply = await house_texts.embedded(
        call, served, bodies.texts_of(body.input), dimensions=body.dimensions, truncate=body.truncate
    )
    vectors = house_texts.encoded(reply.answers, body.dimensions, body.encoding_format)
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    usage = {"prompt_tokens": reply.tokens, "total_tokens": reply.tokens}
    content = {"object": "list", "data": data, "model": served.identity.name, "usage": usage}
    return operation.JsonResponse(content, headers=reply.headers)


async def models(call: operation.Call) -> Response:
    """The served models."""
    return operation.JsonResponse({"object": "list", "data": [_card(served) for served in call.models]})


async def model(call: operation.Call) -> Response:
    """One model.

    Returns:
        The model.
    """
    found = call.served(ANY, call.request.path_params["model"], listed=LIST)
    return operation.JsonResponse(_card(found), headers=found.identity.headers)


def _card(served: loading.LoadedModel) -> dict[str, object]:
    return OpenAIModel(id=served.identity.name, created=0, owned_by=served.identity.source).model_dump()


OPENAI = operation.Dialect(
    operation.Words(OpenAIError, _said, unusable=400),
    (
        operation.Operation(
            path=_EMBEDDINGS,
            answer=embeddings,
            result=EmbeddingList,
            ability=house_texts.EMBEDDING,
            place="input[{}]".format,
        ),
        COMPLETIONS,
        operation.Operation(path=LIST, answer=models, result=OpenAIModelList),
        operation.Operation(path="/v1/models/{model}", answer=model, tells="model", result=OpenAIModel),
    ),
    tag="OpenAI",
)
