"""OpenAI's `/v1/completions`, in the form that its SDK sends and reads."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from clozeline.inference.completer import Decoding
from clozeline.serving.protocols.fields import TEXT_TAG, TEXTS_TAG, RequestBody, inputs_kind, texts_of
from clozeline.serving.protocols.house.complete import (
    COMPLETING,
    MAX_STOPS,
    CutBeginning,
    NewTokens,
    Seed,
    Stop,
    Stops,
    Temperature,
    TopP,
    continued,
)
from clozeline.serving.protocols.openai_texts import LIST, OpenAITexts, Usage
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation

_Stop = Annotated[
    Annotated[Stop, Tag(TEXT_TAG)] | Annotated[Stops, Tag(TEXTS_TAG)],
    Field(description="The answer ends before this string, or before any of several."),
    Discriminator(
        inputs_kind, custom_error_type="stop_type", custom_error_message=f"a string, or at most {MAX_STOPS} of them"
    ),
]


_Zero = Annotated[float, Field(ge=0, le=0, description="Only 0 is supported.", strict=False)]


def _in_one_piece(given: object) -> object:
    if given is True:
        raise PydanticCustomError("no_stream", "false, because an answer comes in one piece")
    return given


class CompletionsRequest(RequestBody):
    model: Annotated[str, Field(description="A name from /v1/models.")]
    prompt: OpenAITexts
    max_tokens: NewTokens = 16
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    seed: Seed | None = None
    stop: _Stop | None = None
    echo: Annotated[bool, Field(description="Put the prompt before its continuation.")] = False
    n: Literal[1] = 1
    best_of: Literal[1] = 1
    frequency_penalty: _Zero = 0.0
    presence_penalty: _Zero = 0.0
    stream: Annotated[Literal[False], BeforeValidator(_in_one_piece)] = False
    user: Annotated[str | None, Field(description="Accepted and ignored.")] = None
    truncate: CutBeginning = False

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, given: Any) -> Any:
        """Let null stand for the default, as in OpenAI's API."""
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given

    @property
    def decoding(self) -> Decoding:
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Decoding(self.max_tokens, self.temperature, self.top_p, self.seed or 0, stops)


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


EXAMPLES = {
    "greedy": Example(
        "The likeliest continuation", {"model": "encoder", "prompt": "Return the number of", "temperature": 0}
    ),
    "drawn": Example(
        "Two prompts, drawn with a seed",
        {
            "model": "encoder",
            "prompt": ["Return the number of", "Raise an"],
            "max_tokens": 8,
            "temperature": 0.8,
            "seed": 1,
            "stop": ".",
        },
    ),
}


async def completions(call: Call, body: CompletionsRequest) -> Response:
    served = call.served(COMPLETING, body.model, listed=LIST)
    texts = texts_of(body.prompt)
    found, reply = await continued(call, served, texts, body.decoding, truncate=body.truncate)
    choices = [
        {
            "index": index,
            "text": (texts[index] if body.echo else "") + one.text,
            "finish_reason": one.finish_reason,
            "logprobs": None,
        }
        for index, one in enumerate(found)
    ]
    num_new = sum(len(one.tokens) for one in found)
    num_given = sum(one.num_read for one in found)
    usage = {"prompt_tokens": num_given, "completion_tokens": num_new, "total_tokens": num_given + num_new}
    content = {"id": "", "object": "text_completion", "created": 0, "model": served.identity.name}
    return JsonResponse(content | {"choices": choices, "usage": usage}, headers=reply.headers)


COMPLETIONS = Operation(
    path="/v1/completions",
    answer=completions,
    summary="Continue texts, in the form of OpenAI's API",
    result_description="One continuation for each text",
    result=Completions,
    ability=COMPLETING,
    body=CompletionsRequest,
    examples=EXAMPLES,
    place="prompt[{}]".format,
)
