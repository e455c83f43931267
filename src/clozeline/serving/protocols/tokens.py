"""text-embeddings-inference's /tokenize and /decode: from texts to the tokens of a model, and back."""

from typing import Annotated

from pydantic import BaseModel, Discriminator, Field, Tag
from starlette.responses import Response

from clozeline.artifacts.export.manifest import Manifest
from clozeline.serving.errors import problem
from clozeline.serving.models.catalogue import ANY
from clozeline.serving.protocols.fields import (
    FLAT_TAG,
    MAX_TEXTS,
    NESTED_TAG,
    WHOLE,
    Inputs,
    ModelName,
    NoPromptName,
    RequestBody,
    nesting,
    texts_of,
)
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation

_MAX_IDS = 65_536
_Ids = Annotated[list[Annotated[int, Field(ge=0), WHOLE]], Field(min_length=1, max_length=_MAX_IDS)]


class TokenizeRequest(RequestBody):
    inputs: Inputs
    add_special_tokens: bool = True
    prompt_name: NoPromptName = None
    model: ModelName = None


class DecodeRequest(RequestBody):
    ids: Annotated[
        Annotated[_Ids, Tag(FLAT_TAG)]
        | Annotated[Annotated[list[_Ids], Field(min_length=1, max_length=MAX_TEXTS)], Tag(NESTED_TAG)],
        Field(description="Token ids of one text, or a list of such lists."),
        Discriminator(
            nesting, custom_error_type="ids_type", custom_error_message="token ids of one text, or a list of such lists"
        ),
    ]
    skip_special_tokens: bool = True
    model: ModelName = None


class SimpleToken(BaseModel):
    id: int
    text: str
    special: bool
    start: int | None = Field(description="First character in the text; null for an added special token.")
    stop: int | None


TOKENIZE_EXAMPLES = {
    "one text": Example("One text", {"inputs": "Sort a list."}),
    "several": Example(
        "Several texts, without special tokens",
        {"inputs": ["Sort a list.", "Open a file."], "add_special_tokens": False},
    ),
}


async def tokenize(call: Call, body: TokenizeRequest) -> Response:
    served = call.served(ANY, body.model)
    texts = texts_of(body.inputs)
    pieces = await call.service.asking.tokenizing(
        call.request,
        lambda: served.model.tokenizer.pieces(texts, add_special_tokens=body.add_special_tokens),
        sum(map(len, texts)),
    )
    return JsonResponse(pieces, headers=served.identity.headers)


async def decode(call: Call, body: DecodeRequest) -> Response:
    served = call.served(ANY, body.model)
    lists = [ids for ids in body.ids if isinstance(ids, list)] or [[one for one in body.ids if isinstance(one, int)]]
    _check_known(lists, served.model.manifest)
    texts = await call.service.asking.tokenizing(
        call.request,
        lambda: [served.model.tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens) for ids in lists],
        sum(map(len, lists)),
    )
    return JsonResponse(texts, headers=served.identity.headers)


def _check_known(lists: list[list[int]], manifest: Manifest) -> None:
    largest = max(map(max, lists))
    if largest >= manifest.vocab_size:
        raise problem(
            422,
            "unknown_token",
            "a token id is not in the vocabulary of the model",
            given=largest,
            expected=f"ids from 0 to {manifest.vocab_size - 1}",
            do="send ids that /tokenize returns for this model",
            param="ids",
        )


TOKEN_OPERATIONS = (
    Operation(
        path="/tokenize",
        answer=tokenize,
        summary="Split texts into tokens",
        result_description="A list of tokens for each text, even for a single text",
        ability=ANY,
        tells="model",
        result=list[list[SimpleToken]],
        body=TokenizeRequest,
        examples=TOKENIZE_EXAMPLES,
    ),
    Operation(
        path="/decode",
        answer=decode,
        summary="Join token ids into texts",
        result_description="The text of each list of ids",
        ability=ANY,
        tells="model",
        result=list[str],
        body=DecodeRequest,
        examples={"one text": Example("One text", {"ids": [5, 6, 7]})},
    ),
)
